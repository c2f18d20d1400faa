from __future__ import annotations

from dataclasses import replace

from harness.core.outcomes import Outcome
from harness.core.run.records import Refusal
from harness.judge.checks.metadata import refused
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, the_only_finding

CASE = "offline-micro-batch-2"


def evidence_of(refusal: Refusal) -> CellEvidence:
    evidence = evidence_for(replace(config_of("rules"), forbidden=CASE))
    evidence.records[0].refusal = refusal
    return evidence


def refusal(clear: bool = True, **fields: str) -> Refusal:
    return Refusal(validator="validate", wanted="micro batch size should be 1", clear=clear, **fields)  # type: ignore[arg-type]


def test_a_refusal_that_names_the_rule_passes() -> None:
    evidence = evidence_of(refusal(type="ValueError", message="Micro batch size should be 1"))
    assert judge(evidence).outcome is Outcome.PASS


def test_an_accepted_combination_fails() -> None:
    finding = the_only_finding(evidence_of(refusal(clear=False)), "refused")
    assert "accepts the forbidden combination offline-micro-batch-2" in finding.message
    assert (finding.fault_class, finding.measured) == (fault_classes.NOT_REFUSED, "accepted")


def test_a_refusal_for_another_reason_fails() -> None:
    finding = the_only_finding(evidence_of(refusal(clear=False, type="KeyError", message="'x'")), "refused")
    assert "without naming the violated rule: KeyError: 'x'" in finding.message


def test_a_validator_that_refuses_everything_fails() -> None:
    evidence = evidence_of(refusal(type="ValueError", message="no", allowed_refused="no GPU"))
    assert "refuses even the nearest allowed combination: no GPU" in the_only_finding(evidence, "refused").message


def test_other_cells_have_no_case() -> None:
    assert refused.check(evidence_for(config_of("unpacked"))) == []
