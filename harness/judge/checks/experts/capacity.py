"""With a capacity, every expert takes as many tokens as fit of those that choose it, exactly.

A rank's experts have a capacity for that rank's tokens: ceil(tokens x topk / experts x factor)
(moe_utils.get_capacity, apply_router_token_dropping). Where the oracle computes the cell, it is judged in all steps and
evaluations, and `router_choice` judges which tokens are dropped. Else it is judged in step 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce

from harness.core.cell.model import MoeConfig
from harness.core.run.records import ChoiceSeen, RankRecord, RouterSeen
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import added
from harness.judge.locations import in_short, where_of


def check(evidence: CellEvidence) -> list[CheckFinding]:
    moe, steps = evidence.cell.config.model.moe, evidence.cell.config.train.steps
    if moe is None or moe.capacity_factor is None:
        return []
    follows = evidence.oracle is not None and evidence.oracle.record is not None
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        found = (*_by_choices(record, moe, steps), *(() if follows else _by_logits(record, moe, steps)))
        if found:
            return [found[0]]
    return []


def _by_choices(record: RankRecord, moe: MoeConfig, steps: int) -> Iterator[CheckFinding]:
    for choice in sorted(record.choices, key=lambda one: (one.step, one.layer, one.micro_batch)):
        taken, right = (
            _counts(choice.taken or [], moe),
            _fitting(moe, _counts(choice.experts, moe), len(choice.experts)),
        )
        others = sum(len({*took} - {*own}) for own, took in zip(choice.experts, choice.taken or []))
        if taken != right:
            what = f"tokens that experts take: {in_short(taken, right, 'their capacity gives')}"
            yield _finding(record, choice, what, taken, right, steps)
        elif others and not moe.pad_to_capacity:
            yield _finding(record, choice, f"experts take {others} tokens that did not choose them", others, 0, steps)


def _by_logits(record: RankRecord, moe: MoeConfig, steps: int) -> Iterator[CheckFinding]:
    """By the rank's own arithmetic, where the oracle does not compute the cell."""
    for seen in sorted(record.routers, key=lambda one: (one.layer, one.micro_batch)):
        right = own_kept(moe, seen)
        if seen.kept != right:
            what = f"tokens that experts take: {in_short(seen.kept, right, 'their capacity gives')}"
            yield _finding(record, seen, what, seen.kept, right, steps)


def _counts(slots: list[list[int]], moe: MoeConfig) -> list[int]:
    found = [0] * moe.experts
    for experts in slots:
        for expert in experts:
            found[expert] += 1
    return found


def own_kept(moe: MoeConfig, seen: RouterSeen) -> list[int]:
    """Tokens of a rank that each expert takes."""
    share = reduce(added, [*seen.real, *seen.padding])
    return _fitting(moe, share.counts, share.tokens)


def _fitting(moe: MoeConfig, chosen: list[int], tokens: int) -> list[int]:
    """Of the tokens that chose each expert, among those of a rank, how many it takes."""
    capacity = math.ceil(tokens * moe.topk / moe.experts * (moe.capacity_factor or 0.0))
    most = min(capacity, tokens)
    return [most if moe.pad_to_capacity else min(count, most) for count in chosen]


def _finding(
    record: RankRecord, seen: ChoiceSeen | RouterSeen, what: str, measured: object, bound: object, steps: int
) -> CheckFinding:
    step = seen.step if isinstance(seen, ChoiceSeen) else 0
    when = "" if step == 0 else f", step {step}" if step < steps else f", evaluation {step - steps}"
    at = where_of(record.place, rank=record.rank, step=min(step, steps), layer=seen.layer, micro_batch=seen.micro_batch)
    return CheckFinding(
        fault_class=fault_classes.ROUTER,
        message=f"layer {seen.layer}, micro-batch {seen.micro_batch}, rank {record.rank}{when}: {what}",
        where=at,
        measured=measured,
        bound=bound,
    )
