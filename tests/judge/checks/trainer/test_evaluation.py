from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.config import TrainConfig
from harness.core.outcomes import Outcome
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import EvaluationSeen
from harness.judge.checks import trainer
from harness.judge.checks.trainer import evaluations_of
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import TRAIN, at, config_of, evidence_for, judge, place_of, the_only_finding, with_oracle

EVERY = replace(TRAIN, eval_interval=1)


def evaluated(trainer: str = "megatron", data_path: str = "sft", **layout: int) -> CellEvidence:
    """A right cell that evaluates after steps 1 and 2, and at the end; so does its control."""
    return evidence_for(replace(config_of(data_path, **layout), trainer=trainer, train=EVERY))


def change(evidence: CellEvidence, number: int, what: Callable[[EvaluationSeen], None], **where: int) -> None:
    for record in at(evidence, **where):
        what(record.evaluations[number])


@pytest.mark.parametrize(
    ("train", "after"),
    [
        (TrainConfig(steps=3), ()),
        (TrainConfig(steps=3, eval_interval=1), (1, 2, 3, 3)),
        (TrainConfig(steps=3, eval_interval=2), (2, 3)),
        (TrainConfig(steps=3, eval_interval=9), (3,)),
    ],
)
def test_upstream_evaluates_once_more_at_the_end(train: TrainConfig, after: tuple[int, ...]) -> None:
    assert train.evaluated == after
    assert train.passes == train.steps + len(after)


@pytest.mark.parametrize(("trainer", "data_path"), [("megatron", "sft"), ("harness", "sft")])
def test_right_evaluations_pass(trainer: str, data_path: str) -> None:
    evidence = evaluated(trainer, data_path, tp=2, pp=2)
    assert [one.after for one in evaluations_of(evidence)] == [1, 2, 2]
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_a_loss_that_is_not_the_controls_is_named_with_its_evaluation() -> None:
    evidence = evaluated(pp=2)

    def larger(seen: EvaluationSeen) -> None:
        assert seen.loss_sum is not None and seen.reported is not None
        seen.loss_sum, seen.reported = seen.loss_sum * 1.01, seen.reported * 1.01
        for loss in seen.documents.values():
            loss.loss_sum *= 1.01

    change(evidence, 1, larger, pp=1)
    finding = the_only_finding(evidence, "evaluation")
    assert place_of(finding, "stage", "rank", "after") == (1, 1, 2)
    assert finding.message.startswith("loss sum of the evaluation after step 2 on rank 1:")
    assert "off by 0.01 > 1e-05 relative" in finding.message


def test_losses_of_documents_that_cancel_in_the_sum_are_named() -> None:
    evidence = evaluated("harness", "sft", pp=2)

    def exchanged(seen: EvaluationSeen) -> None:
        first, second = sorted(seen.documents)[:2]
        seen.documents[first].loss_sum += 0.1
        seen.documents[second].loss_sum -= 0.1

    change(evidence, 1, exchanged, pp=1)
    finding = the_only_finding(evidence, "evaluation")
    assert finding.message.startswith("loss sum of document 0 in the evaluation after step 2: ")
    assert finding.message.endswith("; 2 of 8 documents differ")
    assert place_of(finding, "stage", "after", "document", "documents") == (1, 2, 0, [0, 1])


def test_outputs_of_layers_are_compared_with_the_oracle_where_losses_are_right() -> None:
    evidence = evaluated("harness", "sft", pp=2)
    with_oracle({"": evidence})
    assert judge(evidence).outcome is Outcome.PASS

    def other(seen: EvaluationSeen) -> None:
        for output in seen.activations[-1].documents.values():
            output.projections = [1.5 * value for value in output.projections]

    change(evidence, 1, other, pp=1)
    finding = the_only_finding(evidence, "evaluation")
    assert finding.message.startswith("activations of the evaluation after step 2 first differ after layer ")
    assert place_of(finding, "after", "document") == (2, 0)
    evidence = evaluated("harness", "sft", pp=2)  # with a control
    change(evidence, 1, other, pp=1)
    assert judge(evidence).outcome is Outcome.PASS


def test_outputs_of_layers_that_a_rank_lacks_are_incomplete_evidence() -> None:
    evidence = evaluated("harness", "sft", pp=2)
    change(evidence, 1, lambda seen: seen.activations.clear(), pp=1)
    assert "evaluations: number 1: activations: recorded for layers []" in judge(evidence).reason


def test_a_reported_loss_that_is_not_the_mean_is_named_though_the_loss_is_right() -> None:
    evidence = evaluated()

    def third(seen: EvaluationSeen) -> None:
        assert seen.reported is not None
        seen.reported /= 3

    change(evidence, 0, third)
    finding = the_only_finding(evidence, "evaluation")
    assert finding.message.startswith("reported loss of the evaluation after step 1 on rank 0:")
    assert finding.fault_class == "D reported metric wrong"


def test_megatron_reports_the_mean_of_micro_batches_and_others_that_of_tokens() -> None:
    evidence = evaluated()
    (first, *_) = evaluations_of(evidence)
    assert first.loss_sum is not None
    of_tokens = first.loss_sum / first.tokens
    reported = first.seen[0][1].reported
    assert reported is not None and abs(reported - of_tokens) > 1e-4
    change(evidence, 0, lambda seen: setattr(seen, "reported", of_tokens))
    assert "the mean over micro-batches is" in the_only_finding(evidence, "evaluation").message


def test_a_trainer_that_does_not_evaluate_fails() -> None:
    evidence = evaluated()
    evidence.records[0].evaluations.clear()
    finding = the_only_finding(evidence, "evaluation")
    assert finding.message == "rank 0 evaluated after no step, expected after steps 1, 2, 2"


def test_a_missing_evaluation_of_the_own_loop_is_incomplete_evidence() -> None:
    evidence = evaluated("harness")
    evidence.records[0].evaluations.pop()
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "evaluations: after steps [1, 2], expected after [1, 2, 2]" in verdict.reason


def test_tokens_that_are_not_counted_are_named_with_their_document() -> None:
    evidence = evaluated("harness")

    def fewer(seen: EvaluationSeen) -> None:
        document = next(index for index, loss in seen.documents.items() if loss.tokens)
        seen.documents[document].tokens -= 1
        assert seen.token_count is not None
        seen.token_count -= 1

    change(evidence, 0, fewer)
    finding = the_only_finding(evidence, "evaluation")
    assert "in the evaluation after step 1" in finding.message and "by the packing plan" in finding.message


def test_a_count_that_only_one_rank_has_wrong_is_named() -> None:
    evidence = evaluated("harness", tp=2)
    change(evidence, 1, lambda seen: setattr(seen, "token_count", 3), tp=1)
    assert "after step 2 on rank 1: 3, expected" in the_only_finding(evidence, "evaluation").message


def test_a_loss_that_is_not_finite_is_left_to_its_own_check() -> None:
    evidence = evaluated(pp=2)
    change(evidence, 0, lambda seen: setattr(seen, "reported", math.nan), pp=1)
    assert "the reported loss of the evaluation after step 1" in the_only_finding(evidence, "finiteness").message


def test_evaluations_are_compared_as_far_as_all_ranks_of_the_last_stage_have_them() -> None:
    evidence = evaluated("harness", cp=2)
    evidence.records[1].evaluations.pop()
    assert [one.number for one in evaluations_of(evidence)] == [0, 1]
    del evidence.records[1]
    assert list(evaluations_of(evidence)) == []


def test_with_other_rows_than_the_controls_only_reports_are_compared() -> None:
    evidence = evaluated()
    assert evidence.control is not None
    for record in evidence.control.records.values():
        record.evaluations[0].loss_sum = 1.0
    assert [finding.message[:8] for finding in trainer.evaluation(evidence)] == ["loss sum"]
    options = replace(evidence.cell.config.options, calculate_per_token_loss=False)
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, options=options))
    assert not evidence.same_rows
    assert trainer.evaluation(evidence) == []


def test_documents_of_evaluations_are_not_those_of_steps() -> None:
    config = replace(config_of("sft"), train=EVERY, documents=DocumentsConfig(mode="distribution"))
    lengths = {tuple(item.length for item in config.documents_of(step)) for step in range(config.train.passes)}
    assert len(lengths) == config.train.passes
