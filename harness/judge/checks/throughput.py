"""Throughput: packed rows are not slower than they should be, nor than in another stack or in earlier runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from harness.core.outcomes import Lane, Severity
from harness.core.tolerances import MIN_RUNS, Bound
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import (
    Load,
    against_history,
    documents_of,
    on_gpu,
    packed_pass,
    paired_times,
    ratio_of,
    samples_before,
    times_of,
)
from harness.judge.stats.baseline import Comparison
from harness.judge.stats.distance import bound_text
from harness.judge.stats.paired import PairedRatio, paired_ratio, ratio_text


def not_timed(evidence: CellEvidence, names: Iterable[str]) -> list[CheckFinding]:
    """Return a warning for every reason why a load that the matrix asks for could not be timed."""
    untimed = {name: why for record in evidence.records.values() for name, why in record.untimed.items()}
    reasons = dict.fromkeys(untimed[name] for name in names if name in untimed)
    return [CheckFinding(severity=Severity.WARNING, message=f"not timed: {why}") for why in reasons]


PARTS = {
    "rotary": "the THD rotary function alone",
    "step": "forward and backward of the whole model",
}


@check(Lane.THROUGHPUT)
def segment_slope(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that time does not grow with the documents in a pack of fixed length: no loop over them, no host syncs.

    Judges the stack's rotary function alone and the whole step. Needs no control: a cell is compared with itself.
    """
    bounds = {"rotary": evidence.tolerances.rotary_slope, "step": evidence.tolerances.segment_slope}
    times = times_of(evidence)
    findings = not_timed(evidence, bounds)
    for part, bound in bounds.items():
        documents = documents_of(times, part)
        # Paired by round: both loads of a round saw the same clocks and neighbours.
        ratio = ratio_of(times, (part, documents[-1]), (part, documents[0])) if len(documents) > 1 else None
        if ratio is not None and ratio.above(bound.value):
            findings.append(_finding(part, documents, times, ratio, bound))
    return findings


def _finding(
    part: str, documents: list[int], times: dict[Load, dict[int, float]], ratio: PairedRatio, bound: Bound
) -> CheckFinding:
    medians = [statistics.median(times[part, count].values()) for count in documents]
    curve = ", ".join(f"{count}: {1000 * seconds:.3g} ms" for count, seconds in zip(documents, medians))
    return CheckFinding(
        fault_class=fault_classes.SEGMENT_LOOP,
        message=f"{PARTS[part]} takes {ratio_text(ratio)} as long with {documents[-1]} documents in a pack as with "
        f"{documents[0]} in one of the same length, bound {bound_text(bound)}; time by number of documents: {curve}",
        where={"leg": "timing", "part": part},
        measured=ratio.median,
        bound=bound.value,
    )


@check(Lane.THROUGHPUT)
def packed_slower(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that a step's documents take no longer packed than one per row, on the same ranks."""
    bound, times = evidence.tolerances.packed_slower, times_of(evidence)
    packed, unpacked = ("packed", 0), ("unpacked", 0)
    ratio = ratio_of(times, packed, unpacked)
    if ratio is None or not ratio.above(bound.value):
        return not_timed(evidence, ("packed", "unpacked"))
    tokens = sum(document.length for document in evidence.cell.config.documents_of(0))
    rates = [tokens / statistics.median(times[load].values()) for load in (packed, unpacked)]
    return [
        CheckFinding(
            fault_class=fault_classes.PACKED_SLOWER,
            message=f"packed, the {tokens} real tokens of a step take {ratio_text(ratio)} as long as with one document "
            f"per row, bound {bound_text(bound)}; real tokens per second: {rates[0]:.4g} packed, "
            f"{rates[1]:.4g} unpacked",
            where={"leg": "timing"},
            measured=ratio.median,
            bound=bound.value,
        )
    ]


@check(Lane.THROUGHPUT)
def slower_than(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that a cell is no slower than the same cell in the base stack; the two are timed interleaved."""
    bound = evidence.tolerances.slower_than
    ours, theirs = paired_times(evidence)
    ratio = paired_ratio(ours, theirs)
    if ratio is None or evidence.base is None or not ratio.above(bound.value):
        return not_timed(evidence, ("turn",))
    base = evidence.base.cell.config.stack
    medians = [1000 * statistics.median(times) for times in (ours, theirs)]
    return [
        CheckFinding(
            fault_class=fault_classes.SLOWER_STACK,
            message=f"forward and backward of a step take {ratio_text(ratio)} as long as in stack {base}, interleaved, "
            f"bound {bound_text(bound)}; median {medians[0]:.3g} ms, in {base} {medians[1]:.3g} ms",
            where={"leg": "timing", "base": base},
            measured=ratio.median,
            bound=bound.value,
        )
    ]


_LISTED = 3  # run ids in a message; the report's baseline.json has them all


@check(Lane.THROUGHPUT)
def slower_than_history(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that a step takes no longer than in earlier green runs of the same cell on the same hardware."""
    bound = evidence.tolerances.slower_than_history
    compared = against_history(evidence)
    if compared is None:
        return _no_baseline(evidence)
    if not compared.slower(bound.value):
        return []
    # On a GPU a step of the training leg is mostly the probe's own synchronisation; only the timing leg runs without
    # it.
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
    runs = f"{len(compared.samples)} green runs from {oldest.started[:10]} to {newest.started[:10]} ({names}{more})"
    versions = list(dict.fromkeys(sample.version for sample in compared.samples if sample.version))
    more_versions = f" and {len(versions) - _LISTED} others" if len(versions) > _LISTED else ""
    return f"{runs}, of {', '.join(versions[:_LISTED])}{more_versions}" if versions else runs


def _no_baseline(evidence: CellEvidence) -> list[CheckFinding]:
    """Return a warning if the matrix asks for a comparison with earlier runs that is not possible."""
    if evidence.before is None:
        return []
    if on_gpu(evidence) and packed_pass(evidence) is None:
        text = "not compared with earlier runs: on a GPU that needs the timing leg; set packed_slower to run it"
        return [CheckFinding(severity=Severity.WARNING, message=text)]
    if not on_gpu(evidence) and len(evidence.steps) < 2:
        text = "not compared with earlier runs: that needs a second step, since the first warms up"
        return [CheckFinding(severity=Severity.WARNING, message=text)]
    runs = len(samples_before(evidence))
    if runs >= MIN_RUNS:  # this run's own times are missing: complete.uncompared
        return []
    text = f"no baseline yet ({runs} of {MIN_RUNS} green runs on this hardware)"
    return [CheckFinding(severity=Severity.WARNING, message=text)]
