"""Upstream's own unit tests of an `upstream_tests` cell: as many pass, fail and are skipped as the matrix says."""

from __future__ import annotations

from harness.core.data_paths.own import Counts
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence


def check(evidence: CellEvidence) -> list[CheckFinding]:
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
