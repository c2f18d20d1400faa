"""No number that a rank computed, in any leg, is NaN or infinite; later checks leave such values out.

Checked on each rank separately: a sum over ranks, or the copy of another rank, would hide which rank computed it. Not
checked where the control's training diverges.
"""

from __future__ import annotations

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered
from harness.judge.stats.distance import exactly


def check(evidence: CellEvidence) -> list[CheckFinding]:
    bad = [
        (number, rank)
        for rank, found in evidence.scans.items()
        for number in found.bad
        if number.where.get("step", number.where.get("after", 0)) < evidence.diverges
    ]
    if not bad:
        return []
    first, rank = min(bad, key=lambda item: (item[0].order, item[1]))
    ranks = sorted({item[1] for item in bad})
    more = f"; {len(bad) - 1} further values on {numbered('rank', ranks)} are not finite" if len(bad) > 1 else ""
    return [
        CheckFinding(
            fault_class=fault_classes.NON_FINITE,
            message=f"{first.what} is {first.value} on rank {rank}{more}",
            where=first.where | {"ranks": ranks},
            measured=first.value,
            bound=exactly("finite", "sums of finite numbers are finite"),
        )
    ]
