"""Whether a result is of this cell and attempt, and whether a rejection is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import NODE_RULES, Rejection
from harness.core.run.cell_result import CellResult
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required.identity import rejection_problem, untrusted
from tests.judge.simulator import config_of, evidence_for

YEAR_S = 366 * 86400.0
RESULT = [
    ({"schema_version": 1}, "schema_version 1, this harness reads 2"),
    ({"cell": "other"}, "it belongs to cell other"),
    ({"attempt": 2}, "it belongs to attempt 2, but is in the folder of attempt 1"),
    ({"status": "done"}, "status is 'done', not one of completed, failed, rejected, error"),
    ({"started": 104.0}, "it started at 104.0 and finished at 103.5"),
    ({"started": -1.0}, "it started at -1.0 and finished at 103.5"),
    ({"started": math.nan}, "it started at nan and finished at 103.5"),
    ({"finished": 4102444801.0}, "it started at 100.0 and finished at 4102444801.0"),
    ({"steps_s": -1.0}, "its steps took -1.0 s"),
    ({"steps_s": YEAR_S + 1}, "its steps took 31622401.0 s"),
    ({"steps_s": math.nan}, "its steps took nan s"),
    ({"deadline_s": 119.0}, "its ranks had 119.0 s, the cell's deadline is 120.0 s"),
    ({"deadline_s": 601.0}, "its ranks had 601.0 s, the cell's deadline is 120.0 s"),
    ({"deadline_s": math.nan}, "its ranks had nan s, the cell's deadline is 120.0 s"),
]


@pytest.mark.parametrize(("fields", "problem"), RESULT)
def test_a_result_must_be_of_this_attempt_and_possible(fields: dict[str, Any], problem: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    evidence.result = replace(evidence.result, **fields)
    assert untrusted(evidence) == f"result.json: {problem}"


def test_times_at_their_limits_are_possible() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    evidence.result = replace(evidence.result, started=0.0, finished=4102444800.0, steps_s=YEAR_S, deadline_s=600.0)
    assert untrusted(evidence) == ""


@pytest.mark.parametrize(
    ("change", "ranks"),
    [
        (lambda result: setattr(result.ranks[1], "rank", 2), [0, 2]),
        (lambda result: setattr(result.ranks[1], "rank", -1), [0, -1]),
        (lambda result: setattr(result.ranks[1], "rank", 0), [0, 0]),
    ],
)
def test_a_result_has_one_ending_of_each_rank_at_most(change: Callable[[CellResult], None], ranks: list[int]) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    change(evidence.result)
    assert untrusted(evidence) == f"result.json: it has endings of ranks {ranks}, the layout has 2 ranks"


def test_a_result_may_lack_the_endings_of_ranks() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    evidence.result.ranks.pop()
    assert untrusted(evidence) == ""


def rejected() -> CellEvidence:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.status, evidence.records = "rejected", {}
    evidence.result.rejection = Rejection(rule="stack.data_path", reason="megatron-core 0.16.1 has no SFT data path")
    return evidence


def test_a_clean_rejection_has_no_problem() -> None:
    assert rejection_problem(rejected()) == ""


@pytest.mark.parametrize(("fields", "problem"), [row for row in RESULT if "status" not in row[0]])
def test_a_rejection_must_be_of_this_attempt_and_possible(fields: dict[str, Any], problem: str) -> None:
    evidence = rejected()
    assert evidence.result is not None
    evidence.result = replace(evidence.result, **fields)
    assert rejection_problem(evidence) == f"result.json: {problem}"


def test_a_rejection_with_damaged_files_is_undecided() -> None:
    evidence = rejected()
    evidence.damaged = ["rank-0.json is not JSON"]
    assert rejection_problem(evidence) == "rank-0.json is not JSON"


def test_a_cell_that_ran_was_not_rejected() -> None:
    evidence, ran = rejected(), evidence_for(config_of("sft", tp=2))
    evidence.records = ran.records
    assert rejection_problem(evidence) == "result.json: status is rejected, but 2 ranks left records"


@pytest.mark.parametrize("rule", NODE_RULES)
def test_a_node_may_reject_by_its_rules(rule: str) -> None:
    evidence = rejected()
    assert evidence.result is not None
    evidence.result.rejection = Rejection(rule=rule, reason="its reason")
    assert rejection_problem(evidence) == ""


@pytest.mark.parametrize("rule", ["banana", "cp.divides", "stack.container"])
def test_a_node_may_not_reject_by_other_rules(rule: str) -> None:
    evidence = rejected()
    assert evidence.result is not None
    evidence.result.rejection = Rejection(rule=rule, reason="its reason")
    problem = f"result.json: status is rejected by {rule!r}, which is no rule that nodes decide"
    assert rejection_problem(evidence) == problem


def test_a_rejection_is_of_the_configuration_that_was_planned() -> None:
    evidence = rejected()
    evidence.config = None
    assert rejection_problem(evidence) == "config.json is missing, so what the ranks ran is unknown"
    evidence.config = replace(evidence.cell.config, micro_batch_size=2)
    assert rejection_problem(evidence) == "config.json has micro_batch_size 2, plan.json 1"


@pytest.mark.parametrize("rejection", [None, Rejection(rule="", reason="a"), Rejection(rule="a", reason="")])
def test_a_rejection_names_a_rule_and_a_reason(rejection: Rejection | None) -> None:
    evidence = rejected()
    assert evidence.result is not None
    evidence.result.rejection = rejection
    assert rejection_problem(evidence) == "result.json: status is rejected, but no rule with a reason is named"
