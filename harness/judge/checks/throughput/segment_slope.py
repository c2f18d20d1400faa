"""Time does not grow with the number of documents in a pack of fixed length: no loop over documents, no host syncs.

Judges the stack's rotary function alone and the whole step. Needs no control: a cell is compared with itself.
"""

from __future__ import annotations

import statistics

from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.throughput.shared import not_timed
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import Load, documents_of, ratio_of, times_of
from harness.judge.stats.distance import bound_text
from harness.judge.stats.paired import PairedRatio, ratio_text

PARTS = {
    "rotary": "the THD rotary function alone",
    "step": "forward and backward of the whole model",
}


def check(evidence: CellEvidence) -> list[CheckFinding]:
    bounds = {"rotary": evidence.tolerances.rotary_slope, "step": evidence.tolerances.segment_slope}
    times = times_of(evidence)
    findings = not_timed(evidence, bounds)
    for part, bound in bounds.items():
        documents = documents_of(times, part)
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
