"""With a capacity, every expert takes as many tokens as fit of those that choose it (step 0, exactly), and no others.

A rank's experts have a capacity for that rank's tokens: ceil(tokens x topk / experts x factor)
(moe_utils.get_capacity, apply_router_token_dropping).
"""

from __future__ import annotations

import math
from functools import reduce

from harness.core.cell.model import MoeConfig
from harness.core.run.records import RankRecord, RouterSeen
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import added
from harness.judge.locations import in_short, where_of


def check(evidence: CellEvidence) -> list[CheckFinding]:
    moe = evidence.cell.config.model.moe
    if moe is None or moe.capacity_factor is None:
        return []
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for seen in sorted(record.routers, key=lambda one: (one.layer, one.micro_batch)):
            right = own_kept(moe, seen)
            if seen.kept != right:
                what = f"tokens that experts take: {in_short(seen.kept, right, 'their capacity gives')}"
                return [_finding(record, seen, what, seen.kept, right)]
            if seen.misplaced:
                what = f"experts drop {seen.misplaced} tokens that drop_policy {moe.drop_policy} ranks before others"
                return [_finding(record, seen, what, seen.misplaced, 0)]
    return []


def own_kept(moe: MoeConfig, seen: RouterSeen) -> list[int]:
    """Tokens of a rank that each expert takes."""
    share = reduce(added, [*seen.real, *seen.padding])
    capacity = math.ceil(share.tokens * moe.topk / moe.experts * (moe.capacity_factor or 0.0))
    most = min(capacity, share.tokens)
    return [most if moe.pad_to_capacity else min(count, most) for count in share.counts]


def _finding(record: RankRecord, seen: RouterSeen, what: str, measured: object, bound: object) -> CheckFinding:
    at = where_of(record.place, rank=record.rank, step=0, layer=seen.layer, micro_batch=seen.micro_batch)
    return CheckFinding(
        fault_class=fault_classes.ROUTER,
        message=f"layer {seen.layer}, micro-batch {seen.micro_batch}, rank {record.rank}: {what}",
        where=at,
        measured=measured,
        bound=bound,
    )
