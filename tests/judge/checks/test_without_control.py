"""A control that did not pass is read by no check and by no requirement, but for what upstream built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from harness.core.cell.config import CANARIES
from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.run.run_plan import PlannedCell
from harness.judge.checks.table import CHECKS, Check
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.verdict import CellVerdict, judge_cell
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import TODAY, config_of, evidence_for, judge
from tests.judge.timed import timed

KINDS: dict[str, Callable[[], CellEvidence]] = {
    "layout": lambda: evidence_for(config_of("reference", tp=2, pp=2)),
    "other rows": lambda: evidence_for(config_of("sft", cp=2)),
    "canaries": lambda: evidence_for(config_of("reference", canaries=CANARIES)),
    "experts": lambda: with_routers(),
    "prediction": lambda: with_predictions(),
    "times": lambda: timed({("packed", 0): 0.1, ("unpacked", 0): 0.1}),
}
FAILED = CellVerdict(Outcome.FAIL, dict.fromkeys(Lane, LaneVerdict.FAIL), [], "")


class Unreadable:
    """In place of a record of a control: whatever reads more of it than what upstream built fails."""

    built: tuple[()] = ()

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"{name} of a control that did not pass was read")


class UnreadableEvidence:
    """In place of the evidence of a control, whose cell the plan names."""

    records: Mapping[int, Unreadable] = {0: Unreadable()}

    def __init__(self, cell: PlannedCell) -> None:
        self.cell = cell

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"{name} of a control that did not pass was read")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_finds_nothing_in_a_clean_cell_without_its_control(check: Check, kind: str) -> None:
    evidence = replace(KINDS[kind](), control=None)
    assert [finding.message for finding in check.findings(evidence) if finding.severity == "error"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_control_that_did_not_pass_is_not_read(kind: str) -> None:
    evidence = KINDS[kind]()
    unreadable: Any = UnreadableEvidence(evidence.cell)
    evidence = replace(evidence, control=unreadable)
    verdict = judge_cell(evidence, today=TODAY, control=FAILED)
    assert verdict.outcome is Outcome.ERROR
    assert "did not pass (FAIL)" in verdict.reason
    assert verdict.findings == []
    # The cell's own numbers still fail it, which also takes the requirements into account.
    for record in evidence.records.values():
        for step in record.steps:
            step.token_count = None if step.token_count is None else step.token_count + 1
    verdict = judge_cell(replace(evidence), today=TODAY, control=FAILED)
    assert verdict.outcome is Outcome.FAIL
    assert "token_count" in [finding.check for finding in verdict.findings]


def test_other_losses_of_predicted_tokens_in_a_failed_control_do_not_fail_the_cell() -> None:
    evidence = with_predictions()
    control = evidence.control
    assert control is not None
    for seen in control.records[0].mtp:
        for loss in seen.documents.values():
            loss.loss_sum *= 1.5
    assert judge(evidence).outcome is Outcome.FAIL
    control.records[0].steps[0].token_count = 3
    assert judge(control).outcome is Outcome.FAIL
    assert judge(evidence).outcome is Outcome.ERROR
