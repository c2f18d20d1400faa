"""Packing does not cost time: a step's documents take no longer packed than one per row, on the same ranks."""

from __future__ import annotations

import statistics

from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.throughput.shared import not_timed
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import ratio_of, times_of
from harness.judge.stats.distance import bound_text
from harness.judge.stats.paired import ratio_text


def check(evidence: CellEvidence) -> list[CheckFinding]:
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
