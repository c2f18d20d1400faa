from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.arguments import Argument, Arguments
from harness.core.outcomes import Outcome
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gradients", ["torch.bfloat16"], "gradients are accumulated in torch.bfloat16, not torch.float32"),
        ("weights", ["torch.bfloat16"], "the optimizer's copies of weights are torch.bfloat16, not torch.float32"),
        (
            "moments",
            ["torch.float16", "torch.float32"],
            "Adam's moments are torch.float16, torch.float32, not torch.float32",
        ),
        ("matrix_decays", [0.0], "matrices decay by 0.0, not 0.01"),
        ("matrix_decays", [0.0, 0.01], "matrices decay by 0.0, 0.01, not 0.01"),
        ("vector_decays", [0.01], "biases and norms decay by 0.01, not 0.0"),
    ],
)
def test_a_state_that_is_not_asked_for_names_rank_and_values(field: str, value: list[object], message: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    setattr(evidence.records[1].optimizer, field, value)
    finding = the_only_finding(evidence, "optimizer_state")
    assert (finding.message, finding.fault_class) == (message, fault_classes.OPTIMIZER)
    assert place_of(finding, "rank", "tp", "step") == (1, 1, 0)


def test_weights_decay_as_the_matrix_says() -> None:
    config = replace(config_of("sft"), args=Arguments((Argument(name="weight_decay", words=("0.1",)),)))
    evidence = evidence_for(config)
    assert judge(evidence).outcome is Outcome.PASS
    for record in evidence.records.values():
        assert record.optimizer is not None
        record.optimizer.matrix_decays = [0.01]
    assert the_only_finding(evidence, "optimizer_state").message == "matrices decay by 0.01, not 0.1"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("decays", [0.0], "weight decays 0.0, control 0.0, 0.01"),
        ("rates", [0.000996, 0.001], "learning rates 0.000996, 0.001, control 0.001"),
        ("rates", [0.00100001], "learning rates 0.00100001, control 0.001"),
    ],
)
def test_a_later_step_with_other_rates_or_decays_is_named(field: str, value: list[float], message: str) -> None:
    evidence = evidence_for(config_of("sft", dp=2))
    setattr(evidence.records[1].steps[1], field, value)
    finding = the_only_finding(evidence, "optimizer_state")
    assert finding.message == f"in step 1 the optimizer's groups of parameters have {message}"
    assert place_of(finding, "rank", "dp", "step") == (1, 1, 1)


@pytest.mark.parametrize("field", ["decays", "rates"])
def test_without_rates_or_decays_of_a_step_the_evidence_is_incomplete(field: str) -> None:
    evidence = evidence_for(config_of("sft"))
    setattr(evidence.records[0].steps[1], field, [])
    assert "step 1: no learning rate or no decay of the optimizer's groups is there" in judge(evidence).reason


def test_a_weight_that_the_model_did_not_get_is_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    (seen, *_) = (one for one in evidence.records[1].parameters if one.name.endswith("input_layernorm.weight"))
    assert seen.update is not None
    seen.update.stale = 3
    finding = the_only_finding(evidence, "optimizer_state")
    assert finding.message == (
        "the model of rank 1 does not have the optimizer's weights after the last step: 3 elements of "
        f"{seen.name} differ; affected: parameter {seen.name}"
    )
    assert place_of(finding, "rank", "parameter", "step") == (1, seen.name, 1)
    assert (finding.measured, finding.bound["value"]) == (3, 0)


@pytest.mark.parametrize("field", ["gradients", "weights", "moments", "matrix_decays", "vector_decays"])
def test_a_state_must_be_recorded_whole(field: str) -> None:
    evidence = evidence_for(config_of("sft"))
    setattr(evidence.records[0].optimizer, field, [])
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert f"optimizer: {field} is empty" in verdict.reason


def test_a_rank_that_updates_must_record_its_optimizer() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].optimizer = None
    assert "optimizer is missing" in judge(evidence).reason
