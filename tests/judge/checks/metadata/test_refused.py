from __future__ import annotations

from dataclasses import replace

from harness.core.data_paths.descriptor import FORBIDDEN_CASES
from harness.core.outcomes import Outcome
from harness.core.run.records import Refusal
from harness.judge.checks import answers
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, the_only_finding

CASE = "offline-micro-batch-2"


def evidence_of(refusal: Refusal) -> CellEvidence:
    evidence = evidence_for(replace(config_of("rules"), forbidden=CASE))
    evidence.records[0].refusal = refusal
    return evidence


def refusal(**fields: str) -> Refusal:
    case = FORBIDDEN_CASES[CASE]
    return Refusal(validator=case.validator, wanted=case.pattern, **fields)


def test_a_refusal_that_names_the_rule_passes() -> None:
    evidence = evidence_of(refusal(type="ValueError", message="Micro batch size should be 1"))
    assert judge(evidence).outcome is Outcome.PASS


def test_the_judge_and_not_the_rank_says_which_message_is_clear() -> None:
    found = refusal(type="KeyError", message="unrelated: no attribute foo")
    found.validator, found.wanted = "another", "no attribute"
    assert "without naming the violated rule" in the_only_finding(evidence_of(found), "refused").message


def test_other_cells_have_no_case() -> None:
    assert answers.refused(evidence_for(config_of("unpacked"))) == []
