"""What upstream answers instead of training: what it refuses, and its own tests."""

from __future__ import annotations

from harness.core.data_paths.descriptor import FORBIDDEN_CASES, ForbiddenCase
from harness.core.data_paths.own import Counts
from harness.core.outcomes import Lane
from harness.core.run.records import Refusal
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence


@check(Lane.METADATA)
def refused(evidence: CellEvidence) -> list[CheckFinding]:
    """Upstream refuses the forbidden combination of a `rules` cell, and its message names the violated rule."""
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


@check(Lane.METADATA)
def upstream_tests(evidence: CellEvidence) -> list[CheckFinding]:
    """Upstream's own unit tests of an `upstream_tests` cell: as many pass, fail and are skipped as the matrix says."""
    tests = evidence.cell.config.upstream_tests
    seen = [record.upstream_tests for record in evidence.records.values() if record.upstream_tests is not None]
    if not tests.name or not seen:
        return []  # `completeness` covers ranks that failed earlier
    [result] = seen
    found = Counts(passed=result.passed, failed=result.failed, skipped=result.skipped)
    if found == tests.counts or not found.total:
        return []  # nothing was run: the evidence is incomplete (judge/complete.py)
    failed = f"; failed: {', '.join(result.failures)}" if result.failures else ""
    return [
        CheckFinding(
            fault_class=fault_classes.UNIT_TESTS,
            message=f"upstream's unit tests {tests.name}: {found}, expected {tests.counts}{failed}",
            where={"tests": tests.name},
            measured=str(found),
            bound=f"{tests.counts}, by the matrix",
        )
    ]
