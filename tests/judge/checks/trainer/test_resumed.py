from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.tensor_records import StateSeen, StoredParameter
from harness.features.resume import checks
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, place_of

QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
NORM = "decoder.layers.0.input_layernorm.weight"


def cell(resume: str = "same", **layout: int) -> CellEvidence:
    return evidence_for(replace(config_of("sft", **layout), trainer="megatron", resume=resume))


def later(evidence: CellEvidence) -> CellEvidence:
    assert evidence.resumed is not None
    return evidence.resumed


def state(evidence: CellEvidence, rank: int = 0, number: int = 0) -> StateSeen:
    return evidence.records[rank].states[number]


def stored(evidence: CellEvidence, name: str, rank: int = 0, number: int = 0) -> StoredParameter:
    return next(item for item in state(evidence, rank, number).parameters if item.name == name)


def message(evidence: CellEvidence) -> str:
    (finding,) = checks.resumed(evidence)
    assert finding.fault_class == fault_classes.RESUME
    return finding.message


@pytest.mark.parametrize("resume", ["same", "tp1", "tp1-pp4", "tp4-pp1", "tp1-pp1"])
def test_a_right_resume_passes(resume: str) -> None:
    evidence = cell(resume, tp=2, pp=2)
    assert checks.resumed(evidence) == checks.resumed(later(evidence)) == []
    assert judge(evidence).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda found: found.weight.projections.__setitem__(0, 0.5), "the weight"),
        (lambda found: found.first_moment.projections.__setitem__(1, 0.5), "the first moment"),
        (lambda found: setattr(found.second_moment, "norm_sq", 7.0), "the second moment"),
        (lambda found: setattr(found, "digest", "other bits"), "weight or a moment"),
    ],
)
def test_in_the_same_layout_every_bit_of_a_rank_is_the_same(
    change: Callable[[StoredParameter], object], part: str
) -> None:
    evidence = cell(tp=2)
    change(stored(later(evidence), QKV, rank=1))
    assert message(later(evidence)) == (
        f"{part} of {QKV} on rank 1 differs from what was saved after step 1; different: parameter {QKV}"
    )
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.FAIL
    first = verdict.findings[0]
    assert (first.check, first.message[:9]) == ("resumed", "resumed: ")
    assert place_of(first, "part", "rank", "tp", "step", "parameter") == ("resumed", 1, 1, 1, QKV)


def test_the_state_at_the_end_is_that_of_the_run_that_was_not_interrupted() -> None:
    evidence = cell()
    stored(later(evidence), NORM, number=1).digest = "other bits"
    assert "after step 2 differs from that of the run that was not interrupted" in message(later(evidence))


def test_evaluations_are_those_of_the_run_that_was_not_interrupted() -> None:
    config = replace(config_of("sft", pp=2), trainer="megatron", resume="same")
    evidence = evidence_for(replace(config, train=replace(config.train, eval_interval=1)))
    assert judge(evidence).outcome is Outcome.PASS
    (found, _), saved = later(evidence).records[1].evaluations, evidence.records[1].evaluations
    assert (found.after, len(saved)) == (2, 3)
    assert found.reported is not None
    found.reported += 1e-12
    assert message(later(evidence)).startswith(
        "the reported loss of the evaluation after step 2 on rank 1 differs from that of the run that was not "
        "interrupted: "
    )


@pytest.mark.parametrize("part", ["saved", "resumed"])
def test_the_schedule_counts_the_rows_of_the_plan(part: str) -> None:
    evidence = cell()
    found = evidence if part == "saved" else later(evidence)
    rows = state(found).scheduled
    state(found).scheduled = 0
    assert message(found) == (
        "the schedule of the learning rate has counted 0 rows after step 1 on rank 0, expected "
        f"{rows} by the packing plan"
    )
    assert judge(evidence).outcome is Outcome.FAIL


@pytest.mark.parametrize("part", ["saved", "resumed"])
def test_the_optimizer_counts_its_updates(part: str) -> None:
    evidence = cell("tp1-pp1", tp=2)
    found = evidence if part == "saved" else later(evidence)
    state(found).updates = 0
    assert message(found) == "the optimizer has counted 0 updates after step 1 on rank 0"
    assert judge(evidence).outcome is Outcome.FAIL


@pytest.mark.parametrize("resume", ["same", "tp1-pp2"])
def test_copies_of_a_parameter_are_equal(resume: str) -> None:
    evidence = cell(resume, tp=2, dp=2)
    copy = stored(evidence, NORM, rank=3)
    copy.weight.projections[0] += 1e-6
    assert message(evidence) == f"the weight of {NORM} after step 1 on rank 3 differs from its copy on rank 0"


def test_shards_of_a_parameter_are_no_copies() -> None:
    evidence = cell(tp=2, dp=2)
    stored(evidence, QKV, rank=3).weight.projections[0] += 1e-6
    assert message(evidence) == f"the weight of {QKV} after step 1 on rank 3 differs from its copy on rank 1"


@pytest.mark.parametrize("part", ["weight", "first_moment", "second_moment"])
def test_in_another_layout_whole_tensors_are_compared(part: str) -> None:
    evidence = cell("tp1-pp4", tp=2, pp=2)
    held = getattr(stored(later(evidence), QKV), part)
    held.projections[0] += 1e-6
    text = message(later(evidence))
    assert text.startswith(f"the {part.replace('_', ' ')} of {QKV} as a whole differs from what was saved after step 1")
    assert "> 1e-09 relative (a checkpoint holds the same numbers; float64 sums over other shards)" in text
    held.projections[0] -= 1e-6
    held.norm_sq *= 1 + 1e-10  # a sum in another order
    assert checks.resumed(later(evidence)) == []


def test_a_tied_embedding_of_the_last_stage_counts_once() -> None:
    evidence = cell("tp2-pp1", pp=2)
    tied = replace(stored(evidence, "embedding.word_embeddings.weight"))
    state(evidence, rank=1).parameters.append(tied)
    assert checks.resumed(later(evidence)) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda step: setattr(step, "loss_sum", step.loss_sum * (1 + 1e-15)), "the loss sum of step 1 on rank 1"),
        (lambda step: setattr(step, "grad_norm", 3.0000000000000004), "the gradient norm of step 1 on rank 1"),
        (lambda step: setattr(step.documents[0], "loss_sum", 1.0), "the loss of documents of step 1 on rank 1"),
    ],
)
def test_in_the_same_layout_later_steps_are_equal_to_the_last_bit(change: Callable[[Any], object], text: str) -> None:
    evidence = cell(pp=2)
    (step,) = later(evidence).records[1].steps
    change(step)
    found = message(later(evidence))
    assert found.startswith(f"{text} differs from that of the run that was not interrupted: ")


def test_in_another_layout_later_steps_are_compared_with_the_control_only() -> None:
    evidence = cell("tp2-pp1", pp=2)
    for record in later(evidence).records.values():
        record.steps[0].grad_norm = record.reported[0].grad_norm = 3.00000001
    assert checks.resumed(later(evidence)) == []
    assert judge(evidence).outcome is Outcome.PASS
    for record in later(evidence).records.values():
        record.steps[0].grad_norm = record.reported[0].grad_norm = 3.1
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.findings[0].check) == (Outcome.FAIL, "grad_norm")
    assert verdict.findings[0].message.startswith("resumed: ")


def test_a_rank_without_a_state_is_left_to_completeness() -> None:
    evidence = cell(tp=2)
    later(evidence).records[1].states.clear()
    assert checks.resumed(later(evidence)) == []
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert (
        "resumed: incomplete evidence: record of rank 1: states: recorded after steps [], expected after"
        in verdict.reason
    )
