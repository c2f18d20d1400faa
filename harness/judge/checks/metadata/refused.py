"""Upstream refuses the forbidden combination of a `rules` cell, and its message names the violated rule."""

from __future__ import annotations

from harness.core.data_paths.descriptor import FORBIDDEN_CASES, ForbiddenCase
from harness.core.run.records import Refusal
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence


def check(evidence: CellEvidence) -> list[CheckFinding]:
    forbidden = evidence.cell.config.forbidden
    refusals = [record.refusal for record in evidence.records.values() if record.refusal is not None]
    if not forbidden or not refusals:
        return []  # `completeness` covers ranks that failed earlier
    [refusal] = refusals
    case = FORBIDDEN_CASES[forbidden]
    problem = _problem(refusal, forbidden, case)
    if not problem:
        return []
    return [
        CheckFinding(
            fault_class=fault_classes.NOT_REFUSED,
            message=problem,
            where={"forbidden": forbidden},
            measured=refusal.message or refusal.type or "accepted",  # a bare assertion has no message
            bound=f"refused, with a message like: {case.pattern}",
        )
    ]


def _problem(refusal: Refusal, forbidden: str, case: ForbiddenCase) -> str:
    if refusal.allowed_refused is not None:
        return f"{case.validator} refuses even the nearest allowed combination: {refusal.allowed_refused}"
    if refusal.type is None:
        return f"{case.validator} accepts the forbidden combination {forbidden}"
    if not case.named_in(refusal.message or ""):
        error = f"{refusal.type}: {refusal.message}" if refusal.message else refusal.type
        return f"{case.validator} refuses {forbidden} without naming the violated rule: {error}"
    return ""
