from __future__ import annotations

from dataclasses import replace

from harness.core.outcomes import Outcome
from harness.core.packing.documents import DocumentsConfig
from harness.judge.checks.numerics import token_count
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, evidence_for, judge, leg_of, place_of, the_only_finding


def test_a_document_that_lost_a_token() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    [record] = at(evidence, cp=1)
    record.steps[1].documents[5].tokens -= 1
    finding = the_only_finding(evidence, "token_count")
    assert place_of(finding, "document", "step") == (5, 1)
    assert finding.measured == finding.bound["value"] - 1
    assert finding.fault_class == fault_classes.TOKEN_COUNT


def test_a_truncated_document_that_lost_more_is_called_truncation() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].steps[0].documents[7].tokens -= 3
    assert the_only_finding(evidence, "token_count").fault_class == fault_classes.TRUNCATION


def test_a_step_that_counts_every_context_parallel_rank_names_the_factor() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    for record in evidence.records.values():
        assert record.steps[0].token_count
        record.steps[0].token_count *= 2
    finding = the_only_finding(evidence, "token_count")
    assert place_of(finding, "step", "rank") == (0, 0)
    assert finding.fault_class == "D normalisation: x cp"


def test_loss_on_a_fully_masked_document() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].steps[0].documents[6].tokens = 2
    finding = the_only_finding(evidence, "token_count")
    assert place_of(finding, "document") == (6,)
    assert (finding.measured, finding.bound["value"]) == (2, 0)


def test_a_document_without_a_loss_at_all() -> None:
    evidence = evidence_for(config_of("sft"))
    document = evidence.records[0].steps[1].documents[5]
    document.tokens = 0
    assert the_only_finding(evidence, "token_count").measured == 0


def test_every_rank_of_the_last_stage_counts() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].steps[0].token_count = None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "record of rank 1: steps: step 0: token_count is None on the last stage" in verdict.reason
    evidence.records[0].steps[0].token_count = None
    [finding] = token_count.check(evidence)
    assert finding.measured is None


def test_a_leg_without_the_model_has_no_losses_to_count() -> None:
    uncut = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    evidence = evidence_for(replace(config_of("sft", canaries=("truncation", "isolation")), documents=uncut))
    kinds = {leg.leg.model for leg in evidence.legs.values()}
    assert kinds == {False, True}
    assert token_count.check(evidence) == []


def test_tokens_of_a_leg_with_the_model_are_counted() -> None:
    evidence = evidence_for(config_of("sft", canaries=("truncation", "isolation")))
    leg_of(evidence.records[0], "isolation").documents[3].tokens -= 1
    (finding,) = token_count.check(evidence)
    assert place_of(finding, "leg", "document") == ("isolation", 3)
    assert finding.measured == finding.bound["value"] - 1
