"""A cell is no slower than the same cell in the base stack; the two are timed interleaved."""

from __future__ import annotations

import statistics

from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.throughput.shared import not_timed
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import paired_times
from harness.judge.stats.distance import bound_text
from harness.judge.stats.paired import paired_ratio, ratio_text


def check(evidence: CellEvidence) -> list[CheckFinding]:
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
