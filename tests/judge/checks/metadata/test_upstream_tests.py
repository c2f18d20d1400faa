from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.config import CellConfig
from harness.core.data_paths.own import UpstreamTests
from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.run.records import UpstreamTestsSeen
from harness.judge.checks import answers
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge

TESTS = UpstreamTests(name="packing", file="tests/a.py", passed=8, skipped=1)


def cell() -> CellConfig:
    config = config_of("upstream_tests", canaries=())
    return replace(config, upstream_tests=TESTS, train=replace(config.train, steps=0))


def evidence(seen: UpstreamTestsSeen | None) -> CellEvidence:
    found = evidence_for(cell())
    found.records[0].upstream_tests = seen
    return found


def test_the_counts_of_the_matrix_pass() -> None:
    verdict = judge(evidence(UpstreamTestsSeen(passed=8, failed=0, skipped=1)))
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, [])
    assert verdict.lanes[Lane.NUMERICS] is LaneVerdict.SKIP


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (UpstreamTestsSeen(passed=7, failed=1, skipped=1, failures=["a::b"]), "7 passed, 1 failed, 1 skipped"),
        (UpstreamTestsSeen(passed=9, failed=0, skipped=0), "9 passed, 0 failed, 0 skipped"),
        (UpstreamTestsSeen(passed=0, failed=0, skipped=9), "0 passed, 0 failed, 9 skipped"),
    ],
)
def test_other_counts_fail_and_name_the_tests_that_failed(seen: UpstreamTestsSeen, said: str) -> None:
    (found,) = answers.upstream_tests(evidence(seen))
    assert found.message == f"upstream's unit tests packing: {said}, expected 8 passed, 0 failed, 1 skipped" + (
        "; failed: a::b" if seen.failures else ""
    )
    assert judge(evidence(seen)).outcome is Outcome.FAIL


def test_a_rank_that_counted_nothing_proves_nothing() -> None:
    verdict = judge(evidence(None))
    assert verdict.outcome is Outcome.ERROR
    assert "upstream_tests is None, and the cell's is 'packing'" in verdict.reason


def test_a_run_of_no_tests_proves_nothing() -> None:
    verdict = judge(evidence(UpstreamTestsSeen(passed=0, failed=0, skipped=0)))
    assert (verdict.outcome, verdict.findings) == (Outcome.ERROR, [])
    assert "pytest ran none of the tests of tests/a.py" in verdict.reason


def test_other_cells_count_no_tests() -> None:
    found = evidence_for(config_of("sft"))
    assert answers.upstream_tests(found) == []
    found.records[0].upstream_tests = UpstreamTestsSeen(passed=1, failed=0, skipped=0)
    assert judge(found).outcome is Outcome.ERROR
