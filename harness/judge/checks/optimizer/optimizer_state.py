"""The optimizer works in fp32, its rates and decays are those of the schedule, and the model has its weights.

Exact. A norm that does not get its update, or gradients that are summed in bf16, change too little in a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.core.cell.upstream_config import weight_decay
from harness.core.run.records import RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import exactly

_FP32 = ["torch.float32"]
_ROUNDING = 1e-9  # of schedules, which both sides compute in float64


def check(evidence: CellEvidence) -> list[CheckFinding]:
    for _, record in sorted(evidence.records.items()):
        if found := _state(evidence, record) or _scheduled(evidence, record) or _stale(evidence, record):
            return [found]
    return []


def _scheduled(evidence: CellEvidence, record: RankRecord) -> CheckFinding | None:
    """The first step for which the optimizer's groups have other learning rates or decays than the reference's."""
    reference = evidence.reference.records.values() if evidence.reference else ()
    right = {seen.step: seen for other in reference for seen in other.steps}
    for seen in record.steps:
        if seen.step not in right or not (seen.rates and seen.decays):
            continue
        for text, found, wanted in (
            ("learning rates", seen.rates, right[seen.step].rates),
            ("weight decays", seen.decays, right[seen.step].decays),
        ):
            if len(found) != len(wanted) or not all(map(_equal, found, wanted)):
                message = (
                    f"in step {seen.step} the optimizer's groups of parameters have {text} {_named(found)}, "
                    f"{evidence.origin} {_named(wanted)}"
                )
                return _finding(record, message, {"step": seen.step}, found, wanted, "the schedule of the cell")
    return None


def _equal(found: float, wanted: float) -> bool:
    return math.isclose(found, wanted, rel_tol=_ROUNDING)


def _state(evidence: CellEvidence, record: RankRecord) -> CheckFinding | None:
    config, seen = evidence.cell.config, record.optimizer
    if seen is None:
        return None
    rows: tuple[tuple[str, Sequence[str | float], Sequence[str | float]], ...] = (
        ("gradients are accumulated in", seen.gradients, _FP32),
        ("the optimizer's copies of weights are", seen.weights, _FP32),
        ("Adam's moments are", seen.moments, _FP32),
        ("matrices decay by", seen.matrix_decays, [weight_decay(config)]),
        ("biases and norms decay by", seen.vector_decays, [0.0]),
    )
    for text, found, right in rows:
        if found != right and found:  # what is missing is not complete: judge/complete.py
            message = f"{text} {_named(found)}, not {_named(right)}"
            return _finding(record, message, {"step": 0}, _named(found), _named(right), "the cell's configuration")
    return None


def _stale(evidence: CellEvidence, record: RankRecord) -> CheckFinding | None:
    stale = {one.name: one.update.stale for one in record.parameters if one.update and one.update.stale}
    if not stale:
        return None
    name, count = next(iter(stale.items()))
    message = (
        f"the model of rank {record.rank} does not have the optimizer's weights after the last step: {count} elements "
        f"of {name} are others; differing: {numbered('parameter', list(stale))}"
    )
    where = {"parameter": name, "step": evidence.cell.config.train.steps - 1, "parameters": list(stale)[:16]}
    return _finding(record, message, where, count, 0, "the optimizer's weights, rounded")


def _named(values: Sequence[str | float]) -> str:
    return ", ".join(map(str, values)) or "nothing"


def _finding(
    record: RankRecord, message: str, where: dict[str, Any], measured: Any, right: Any, origin: str
) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_classes.OPTIMIZER,
        message=message,
        where=where_of(record.place, rank=record.rank) | where,
        measured=measured,
        bound=exactly(right, origin),
    )
