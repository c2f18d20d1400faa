from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome
from harness.core.packing.arithmetic import PAD
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import DocumentLoss
from harness.judge.checks import outputs
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.counted import counted_labels
from tests.judge.simulator import at, config_of, evidence_for, judge, place_of, the_only_finding


def test_a_document_that_lost_a_token() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    [record] = at(evidence, cp=1)
    record.steps[1].documents[5].tokens -= 1
    finding = the_only_finding(evidence, "token_count")
    assert place_of(finding, "document", "step") == (5, 1)
    assert finding.measured == finding.bound["value"] - 1
    assert finding.fault_class == fault_classes.TOKEN_COUNT


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


def test_every_rank_of_the_last_stage_counts() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].steps[0].token_count = None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "record of rank 1: steps: step 0: token_count is missing" in verdict.reason
    evidence.records[0].steps[0].token_count = None
    [finding] = outputs.token_count(evidence)
    assert finding.measured is None


def test_a_leg_without_the_model_has_no_losses_to_count() -> None:
    uncut = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    evidence = evidence_for(replace(config_of("sft", canaries=("truncation", "isolation")), documents=uncut))
    kinds = {leg.leg.model for leg in evidence.legs.values()}
    assert kinds == {False, True}
    assert outputs.token_count(evidence) == []


def test_a_returned_number_of_tokens_that_is_not_the_plans_is_found_in_every_step() -> None:
    evidence = evidence_for(config_of("sft", dp=2))
    for record in evidence.records.values():
        record.steps[1].returned_tokens = 2 * (record.steps[1].returned_tokens or 0)
    finding = the_only_finding(evidence, "token_count")
    assert "the losses of step 1 return" in finding.message
    assert finding.message.endswith("by the packing plan; the ratio is x dp or micro-batches")


def test_one_rank_that_returns_other_tokens_is_enough() -> None:
    evidence = evidence_for(config_of("sft", tp=2, cp=2))
    evidence.records[1].steps[0].returned_tokens = 1.0
    assert place_of(the_only_finding(evidence, "token_count"), "tp", "step") == (1, 0)


def test_a_loss_that_returns_no_number_where_gradients_are_divided_by_it() -> None:
    evidence = evidence_for(config_of("sft"))
    for step in evidence.records[0].steps:
        step.returned_tokens = None
    (finding,) = outputs.token_count(evidence)
    assert "return no number of tokens" in finding.message


def test_a_loss_that_is_divided_before_it_is_returned_has_none() -> None:
    evidence = evidence_for(config_of("nemo_rl"))
    assert outputs.token_count(evidence) == []
    evidence.records[0].steps[0].returned_tokens = 8.0
    (finding,) = outputs.token_count(evidence)
    assert "expected none, since it is divided already" in finding.message


@pytest.mark.parametrize("layout", [{}, {"cp": 2}, {"dp": 2}, {"tp": 2, "pp": 2, "cp": 2, "dp": 2}])
@pytest.mark.parametrize(("path", "per_token"), [("nemo_rl", True), ("verl", False)])
def test_a_loss_that_was_divided_by_another_number_of_tokens_is_found(
    path: str, per_token: bool, layout: dict[str, int]
) -> None:
    config = config_of(path, **layout)
    evidence = evidence_for(replace(config, options=replace(config.options, calculate_per_token_loss=per_token)))
    assert outputs.token_count(evidence) == []
    for record in evidence.records.values():  # each context rank returns the loss of whole rows
        record.steps[0].returned_loss = config.layout.cp * (record.steps[0].returned_loss or 0.0)
    assert outputs.token_count(evidence) == []
    tokens = counted_labels(evidence, 1)
    for record in evidence.records.values():
        step = record.steps[1]
        step.returned_loss = step.returned_loss and step.returned_loss * tokens / (tokens + 1)
    (finding,) = outputs.token_count(evidence)
    assert place_of(finding, "step") == (1,)
    assert (round(finding.measured), finding.bound["value"]) == (tokens + 1, tokens)


def test_a_loss_that_is_not_recorded_is_an_error() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].steps[0].returned_tokens = None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "returned_loss, where no number of tokens was returned, is missing" in verdict.reason


@pytest.mark.parametrize("canary", ["order", "determinism", "repetition"])
def test_tokens_outside_documents_that_count_in_a_canary_leg_are_a_finding(canary: str) -> None:
    evidence = evidence_for(config_of("reference", canaries=(canary,)))
    assert judge(evidence).outcome is Outcome.PASS
    (leg,) = evidence.records[0].legs
    leg.token_count += 5
    leg.documents[PAD] = DocumentLoss(loss_sum=30.0, tokens=5)
    finding = the_only_finding(evidence, "token_count")
    assert finding.message.startswith(f"loss tokens in canary leg {leg.leg}: {leg.token_count}, expected ")
