"""A step takes no longer than in earlier green runs of the same cell on the same hardware."""

from __future__ import annotations

from harness.core.outcomes import Severity
from harness.core.tolerances import LEAST_RUNS
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import against_history, on_gpu, packed_pass, samples_before
from harness.judge.stats.baseline import Comparison
from harness.judge.stats.distance import bound_text

_LISTED = 3  # run ids in a message; the report's baseline.json has them all


def check(evidence: CellEvidence) -> list[CheckFinding]:
    bound = evidence.tolerances.slower_than_history
    compared = against_history(evidence)
    if compared is None:
        return _no_baseline(evidence)
    if not compared.slower(bound.value):
        return []
    what, leg = ("a pass of the timing leg", "timing") if on_gpu(evidence) else ("a step", "training")
    text = (
        f"{what} takes {1000 * compared.ratio * compared.median:.3g} ms, {compared.ratio:.3g} times the median of "
        f"{1000 * compared.median:.3g} ms, bound {bound_text(bound)}; that is {compared.z:.3g} robust deviations "
        f"above it, bound {compared.least_z:g} (MAD {100 * compared.mad:.2g} %), and "
        f"longer than in each of {_origin(compared)}"
    )
    return [
        CheckFinding(
            fault_class=fault_classes.SLOWER_THAN_BEFORE,
            message=text,
            where={"leg": leg},
            measured=compared.ratio,
            bound=bound.value,
        )
    ]


def _origin(compared: Comparison) -> str:
    newest, oldest = compared.samples[0], compared.samples[-1]
    names = ", ".join(sample.run_id for sample in compared.samples[:_LISTED])
    more = f" and {len(compared.samples) - _LISTED} more"
    found = f"{len(compared.samples)} green runs from {oldest.started[:10]} to {newest.started[:10]} ({names}{more})"
    versions = list(dict.fromkeys(sample.version for sample in compared.samples if sample.version))
    other = f" and {len(versions) - _LISTED} others" if len(versions) > _LISTED else ""
    return f"{found}, of {', '.join(versions[:_LISTED])}{other}" if versions else found


def _no_baseline(evidence: CellEvidence) -> list[CheckFinding]:
    """A warning if the matrix asks for a comparison with earlier runs that is not possible."""
    if evidence.before is None:
        return []
    if on_gpu(evidence) and packed_pass(evidence) is None:
        text = "not compared with earlier runs: on a GPU that needs the timing leg; set packed_slower to run it"
        return [CheckFinding(severity=Severity.WARNING, message=text)]
    if not on_gpu(evidence) and len(evidence.steps) < 2:
        text = "not compared with earlier runs: that needs a second step, since the first warms up"
        return [CheckFinding(severity=Severity.WARNING, message=text)]
    found = len(samples_before(evidence))
    if found >= LEAST_RUNS:  # this run's own times are missing: complete.uncompared
        return []
    text = f"no baseline yet ({found} of {LEAST_RUNS} green runs on this hardware)"
    return [CheckFinding(severity=Severity.WARNING, message=text)]
