"""The bias of every expert after every step: the same on all ranks, as its rule gives it, and that of the reference.

The rule: a bias grows by its rate if its expert got fewer tokens in the step than the mean of all experts, and shrinks
if it got more (arXiv 2408.15664; moe_utils.get_updated_expert_bias).
"""

from __future__ import annotations

import math

from harness.core.cell.config import CellConfig
from harness.core.cell.model import MoeConfig
from harness.core.run.records import ExpertBiasSeen, RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import RouterWhole, counted_rows, routers
from harness.judge.locations import where_of

_ROUNDING = 1e-5  # relative to the rate by which biases change, of float32
_ROUNDING_BF16 = 2.0**-8  # upstream's Float16Module casts the counts of tokens, and with them the change of a bias


def check(evidence: CellEvidence) -> list[CheckFinding]:
    moe = evidence.cell.config.model.moe
    if moe is None or not moe.expert_bias:
        return []
    first: dict[tuple[int, int], tuple[RankRecord, ExpertBiasSeen]] = {}
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for seen in record.expert_biases:
            other, right = first.setdefault((seen.step, seen.layer), (record, seen))
            if seen.values != right.values:
                return [_finding(record, seen, right.values, f"rank {other.rank} has")]
    expected = _by_rule(evidence, moe) | _of_reference(evidence)
    for place, (record, seen) in sorted(first.items(), key=lambda item: item[0]):
        if place in expected and _differ(seen.values, expected[place], evidence.cell.config):
            whose = f"the {evidence.origin} has" if place[0] else "their tokens give"
            return [_finding(record, seen, expected[place], whose)]
    return []


def _by_rule(evidence: CellEvidence, moe: MoeConfig) -> dict[tuple[int, int], list[float]]:
    """(step 0, layer) -> biases after it, from the tokens that the ranks recorded."""
    if not evidence.first_step_whole:
        return {}
    counts: dict[int, list[int]] = {}
    for router in routers(evidence):
        known = counts.get(router.layer, [0] * moe.experts)
        counts[router.layer] = [a + b for a, b in zip(known, _counted(router, moe))]
    rounding = 0.0 if evidence.cell.config.dtype == "fp32" else _ROUNDING_BF16
    return {(0, layer): [_by_tokens(one, found, moe, rounding) for one in found] for layer, found in counts.items()}


def _by_tokens(own: int, found: list[int], moe: MoeConfig, rounding: float) -> float:
    """The bias of an expert that got `own` tokens; NaN where rounding decides whether that is above the mean."""
    mean = sum(found) / moe.experts
    if own != mean and abs(own - mean) <= rounding * (own + mean):
        return math.nan
    return moe.bias_rate * ((own < mean) - (own > mean))


def _counted(router: RouterWhole, moe: MoeConfig) -> list[int]:
    """Tokens that each expert got; with a capacity, that it took."""
    if router.kept is not None:
        return router.kept
    rows = counted_rows(router, moe.padding_mask)
    return [sum(counts) for counts in zip(*(row.counts for row in rows))]


def _of_reference(evidence: CellEvidence) -> dict[tuple[int, int], list[float]]:
    """(later step, layer) -> biases of the oracle, up to where rounding moves a token to another expert: in its own
    second training."""
    if evidence.reference is None or not evidence.by_oracle:
        return {}
    floors = evidence.reference.later_noise.get("expert_bias", {})
    seen = (seen for record in evidence.reference.records.values() for seen in record.expert_biases)
    return {
        (one.step, one.layer): one.values
        for one in seen
        if one.step and (one.step not in floors or not floors[one.step].value)
    }


def _differ(found: list[float], right: list[float], config: CellConfig) -> bool:
    assert config.model.moe is not None
    most = (_ROUNDING if config.dtype == "fp32" else _ROUNDING_BF16) * config.model.moe.bias_rate
    return any(not abs(a - b) <= most for a, b in zip(found, right) if not math.isnan(b))


def _finding(record: RankRecord, seen: ExpertBiasSeen, right: list[float], whose: str) -> CheckFinding:
    values, wanted = (", ".join(f"{value:.6g}" for value in one) for one in (seen.values, right))
    return CheckFinding(
        fault_class=fault_classes.ROUTER,
        message=f"biases of the experts of layer {seen.layer} after step {seen.step} on rank {record.rank}: {values}; "
        f"{whose} {wanted}",
        where=where_of(record.place, rank=record.rank, step=seen.step, layer=seen.layer),
        measured=seen.values,
        bound=right,
    )
