"""Records required of routers and prediction heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.model import MoeConfig, MtpConfig
from harness.core.run.records import ExpertShare, RankRecord, RouterSeen
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required import model
from harness.judge.required.expected import Expected
from tests.judge.parts import share, with_predictions, with_routers
from tests.judge.simulator import config_of, evidence_for


def problems_of(evidence: CellEvidence, rank: int = 0) -> list[str]:
    return list(model.problems(Expected(evidence), evidence.records[rank]))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda record: record.routers.pop(), "5 (layer, micro-batch) pairs, not 6; [(2, 2)]"),
        (lambda record: record.routers.clear(), "0 (layer, micro-batch) pairs, not 6; [(1, 0)]"),
        (
            lambda record: setattr(record.routers[4], "micro_batch", 3),
            "6 (layer, micro-batch) pairs, not 6; [(1, 2)]",
        ),
        (
            lambda record: record.routers.append(record.routers[0]),
            "7 (layer, micro-batch) pairs, not 6; one is listed twice",
        ),
    ],
)
def test_every_router_is_recorded_once_in_every_micro_batch(
    change: Callable[[RankRecord], object], problem: str
) -> None:
    evidence = with_routers()
    change(evidence.records[0])
    assert sorted(problems_of(evidence))[:1] == [f"routers: {problem}"]


def test_routers_and_predictions_are_of_the_first_step_which_a_resumed_part_does_not_train() -> None:
    plain = replace(config_of("sft"), trainer="megatron", resume="same")
    evidence = evidence_for(
        replace(plain, model=replace(plain.model, moe=MoeConfig(aux_loss="aux_loss"), mtp=MtpConfig()))
    )
    assert evidence.resumed is not None
    found = [problem.partition(" ")[0] for problem in problems_of(evidence)]
    assert found == ["routers:", "aux_scale", "choices:", "mtp:"]
    assert [problem.partition(" ")[0] for problem in problems_of(evidence.resumed)] == ["choices:"]


def test_the_choices_of_routers_are_of_all_steps_with_as_many_experts_per_slot_as_the_model_has() -> None:
    evidence = with_routers(aux_loss="none")
    assert problems_of(evidence) == []
    choices = evidence.records[0].choices
    last = choices.pop()
    (said,) = problems_of(evidence)
    assert said.startswith("choices: ") and "(step, layer, micro-batch) triples, not" in said
    choices.append(last)
    for wrong in ([[0, 0]], [[0, 9]], [[0]]):
        last.experts = wrong
        (said,) = problems_of(evidence)
        assert said.endswith("not 2 experts of every slot")
    last.experts, last.preferred = [[0, 1]], [[1, 2]]  # nothing counts what is preferred
    assert [said.rpartition(": ")[2] for said in problems_of(evidence)] == ["preferred is of other slots"]


def test_with_a_capacity_choices_say_what_experts_take() -> None:
    evidence = with_routers(aux_loss="none")
    moe = replace(MoeConfig(), capacity_factor=1.0)
    model = replace(evidence.cell.config.model, moe=moe)
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, model=model))
    record = evidence.records[0]
    for seen in record.routers:
        seen.kept = [1, 1, 1, 1]
    for choice in record.choices:
        choice.taken = [[0]]
    assert problems_of(evidence) == []
    last = record.choices[-1]
    for taken, said in (
        (None, "taken is of other slots"),
        ([[0], [1]], "taken is of other slots"),
        ([[0, 9]], "an expert takes slots that there is none of"),
    ):
        last.taken = taken
        assert [problem.rpartition(": ")[2] for problem in problems_of(evidence)] == [said]
    last.taken = [[0]]
    plain = with_routers(aux_loss="none")
    plain.records[0].choices[0].taken = [[0]]
    assert [problem.rpartition(": ")[2] for problem in problems_of(plain)] == ["taken is recorded without a capacity"]


def test_the_order_of_routers_does_not_matter() -> None:
    evidence = with_routers()
    evidence.records[0].routers.reverse()
    assert problems_of(evidence) == []


def test_a_stage_has_the_routers_of_its_own_layers() -> None:
    evidence = with_routers(pp=2)
    evidence.records[0].routers += evidence.records[1].routers
    assert problems_of(evidence) == ["routers: 6 (layer, micro-batch) pairs, not 3; [(2, 0)]"]


def test_the_scale_of_auxiliary_losses_is_recorded_if_there_are_any() -> None:
    evidence = with_routers()
    evidence.records[0].aux_scale = None
    assert problems_of(evidence) == ["aux_scale is None, with an auxiliary loss"]
    evidence = with_routers(aux_loss="none")
    evidence.records[0].aux_scale = 1.0
    assert problems_of(evidence) == ["aux_scale is 1.0, without an auxiliary loss"]
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].aux_scale = 0.5
    assert problems_of(evidence) == ["aux_scale is 0.5, without an auxiliary loss"]


@pytest.mark.parametrize("name", ["aux_loss", "aux_weighted"])
def test_routers_record_auxiliary_losses_if_there_are_any(name: str) -> None:
    evidence = with_routers()
    seen = evidence.records[0].routers[2]
    seen.aux_loss = seen.aux_weighted = 0.5
    setattr(seen, name, None)
    pair = "aux_loss is None, aux_weighted 0.5" if name == "aux_loss" else "aux_loss is 0.5, aux_weighted None"
    assert problems_of(evidence) == [f"routers: layer 1, micro-batch 1: {pair}"]

    evidence = with_routers(aux_loss="none")
    setattr(evidence.records[0].routers[2], name, 0.5)
    pair = "aux_loss is 0.5, aux_weighted None" if name == "aux_loss" else "aux_loss is None, aux_weighted 0.5"
    assert problems_of(evidence) == [f"routers: layer 1, micro-batch 1: {pair}"]


@pytest.mark.parametrize("name", ["z_loss", "z_weighted"])
def test_routers_record_z_losses_if_there_are_any(name: str) -> None:
    evidence = with_routers(z_loss_coeff=0.1)
    seen = evidence.records[0].routers[2]
    seen.z_loss = seen.z_weighted = 0.5
    setattr(seen, name, None)
    pair = "z_loss is None, z_weighted 0.5" if name == "z_loss" else "z_loss is 0.5, z_weighted None"
    assert problems_of(evidence) == [f"routers: layer 1, micro-batch 1: {pair}"]
    seen.z_loss = seen.z_weighted = 0.5
    seen.real[0].squares = None
    assert problems_of(evidence) == ["routers: layer 1, micro-batch 1: squares are None"]
    evidence = with_routers()
    evidence.records[0].routers[2].padding[0].squares = 1.0
    assert problems_of(evidence) == ["routers: layer 1, micro-batch 1: squares are 1.0"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"counts": [2, 2, 0, 1]}, "3 tokens, 5 choices, scores that add up to 3.0"),
        ({"counts": [4, 3, 0, -1]}, "3 tokens, 6 choices, scores that add up to 3.0"),
        ({"scores": [4.0, 0.0, 0.0, -1.0]}, "3 tokens, 6 choices, scores that add up to 3.0"),
        ({"scores": [3.0, 0.0, 0.0, 0.004]}, "3 tokens, 6 choices, scores that add up to 3.004"),
        ({"scores": [2.0, 0.0, 0.0, 0.0]}, "3 tokens, 6 choices, scores that add up to 2.0"),
        ({"scores": [float("nan"), 0.0, 0.0, 3.0]}, "3 tokens, 6 choices, scores that add up to nan"),
        (
            {"tokens": -1, "counts": [0, 0, 0, 0], "scores": [0.0] * 4},
            "-1 tokens, 0 choices, scores that add up to 0.0",
        ),
        (
            {"tokens": 0, "counts": [0] * 4, "scores": [0.002, 0.0, 0.0, 0.0]},
            "0 tokens, 0 choices, scores that add up to 0.002",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["real", "padding"])
def test_every_token_goes_to_topk_experts_with_scores_that_add_up_to_1(
    kind: str, fields: dict[str, object], words: str
) -> None:
    evidence = with_routers()
    seen = evidence.records[0].routers[2]
    right = {"tokens": 3, "counts": [2, 2, 1, 1], "scores": [3.0, 0.0, 0.0, 0.0]}
    getattr(seen, kind)[0] = ExpertShare(**(right | fields))  # type: ignore[arg-type]
    assert problems_of(evidence) == [f"routers: layer 1, micro-batch 1: {words}"]


@pytest.mark.parametrize("scores", [[3.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0029], [1.0, 1.0, 0.5, 0.5]])
def test_scores_may_differ_from_1_by_rounding(scores: list[float]) -> None:
    evidence = with_routers()
    evidence.records[0].routers[2].real[0] = ExpertShare(tokens=3, counts=[2, 2, 1, 1], scores=scores)
    assert problems_of(evidence) == []


def test_a_row_without_tokens_adds_up() -> None:
    evidence = with_routers()
    evidence.records[0].routers[2].padding[0] = ExpertShare(tokens=0, counts=[0] * 4, scores=[0.0] * 4)
    assert problems_of(evidence) == []


def test_a_model_without_experts_has_no_routers() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].routers = [RouterSeen(layer=1, micro_batch=0, real=[share(1, 0)], padding=[share(0, 0)])]
    assert problems_of(evidence) == ["routers: 1 (layer, micro-batch) pairs, not 0; [(1, 0)]"]


PLANNED = "[(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]"


def test_every_prediction_head_is_recorded_once_in_every_micro_batch() -> None:
    evidence = with_predictions(depths=2)
    heads = evidence.records[0].mtp
    heads.reverse()
    assert problems_of(evidence) == []
    removed = heads.pop()
    assert problems_of(evidence) == [
        f"mtp: (depth, micro-batch) [(1, 1), (1, 2), (2, 0), (2, 1), (2, 2)], not {PLANNED}"
    ]
    heads += [removed, removed]
    assert problems_of(evidence) == [
        f"mtp: (depth, micro-batch) [(1, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)], not {PLANNED}"
    ]


def test_prediction_heads_are_on_the_last_stage_of_a_model_that_has_some() -> None:
    evidence = with_predictions(pp=2)
    evidence.records[0].mtp = evidence.records[1].mtp[:1]
    assert problems_of(evidence) == ["mtp: (depth, micro-batch) [(1, 0)], not []"]
    plain = evidence_for(config_of("sft"))
    plain.records[0].mtp = evidence.records[1].mtp[:1]
    assert problems_of(plain) == ["mtp: (depth, micro-batch) [(1, 0)], not []"]
