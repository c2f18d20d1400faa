"""Documents as SkyRL's examples, and values by document back at the slots of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import DocumentsConfig, DocumentsMode, mix
from harness.core.packing.options import PackingOptions
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.skyrl.node_documents import by_slot, examples, log_probs_seen, loss_scale
from tests.runtime.conftest import config


def cell(**layout: int) -> CellConfig:
    return replace(config("skyrl", **layout), trainer="skyrl", micro_batch_size=2, distributed_optimizer="on")


def by_document(stream: Tensor, micro: MicroTruth, width: int = 70) -> Tensor:
    """Values of labels by document, as SkyRL has them: in the last columns of a row."""
    rows = torch.zeros(len(micro.plan.placed), width, dtype=stream.dtype)
    for row, item in zip(rows, micro.plan.placed):
        row[width - item.document.length :] = stream[item.start : item.start + item.document.length]
    return rows


@pytest.mark.parametrize("mode", ["adversarial", "multi_turn"])
def test_an_example_holds_the_token_that_only_its_last_label_needs(mode: DocumentsMode) -> None:
    given = replace(cell(), documents=mix(mode, 64, 2))
    truth = StepTruth(given, 0, 0)
    made = examples(given, 0)
    assert len(made) == given.train.global_batch
    micro = truth.micro_batches[0]
    for example, item in zip(made, micro.plan.placed):
        real = slice(item.start, item.start + item.document.length)
        assert example["input_ids"][:-1] == micro.tokens[real].tolist()
        assert example["input_ids"][1:] == micro.labels[real].tolist()
        assert example["loss_mask"] == micro.loss_mask[real].int().tolist()
        assert example["num_actions"] == item.document.length == len(example["attention_mask"]) - 1


def test_examples_are_those_of_one_replica_after_the_other() -> None:
    made, truth = examples(cell(dp=2), 0), StepTruth(cell(dp=2), 0, 1)
    of_second = [item.document.length for plan in truth.plans for item in plan.placed]
    assert [example["num_actions"] for example in made[len(made) // 2 :]] == of_second


def test_the_loss_mask_is_divided_by_the_tokens_of_all_replicas() -> None:
    truth = StepTruth(cell(dp=2), 0, 0)
    counted = sum(sum(example["loss_mask"]) for example in examples(cell(dp=2), 0))
    assert loss_scale(truth) == torch.tensor(1.0) / counted
    masked = replace(cell(), documents=DocumentsConfig(mode="file", lengths=(8,), masked=(0,)))
    assert loss_scale(StepTruth(masked, 0, 0)) == 1.0


@pytest.mark.parametrize("cp", [1, 2])
def test_values_by_document_return_to_their_slots(cp: int) -> None:
    truth = StepTruth(cell(cp=cp), 0, 0)
    for micro in truth.micro_batches:
        stream = torch.where(micro.padding_mask, 0.0, torch.arange(1.0, micro.plan.slots + 1))
        rows = by_document(stream, micro)
        assert torch.equal(by_slot(rows, micro), stream)
        for rank in range(cp):
            seen = log_probs_seen(by_slot(rows, micro), micro.local(stream, cp, rank), micro, cp, rank)
            assert (seen.mismatches, seen.shape, seen.first) == (0, [micro.plan.slots], None)


def test_rows_of_the_controller_have_documents_at_their_slots() -> None:
    """SkyRL's rows are as long as the longest of the step, and the last token has no prediction."""
    micro = StepTruth(cell(), 0, 0).micro_batches[0]
    stream = torch.arange(1.0, micro.plan.slots + 1)
    assert torch.equal(by_slot(torch.cat([stream, torch.zeros(9)])[None], micro, controlled=True), stream)
    shorter = by_slot(stream[None, :-1], micro, controlled=True)
    assert torch.equal(shorter, torch.where(stream == micro.plan.slots, 0.0, stream))


def test_a_controller_gets_the_documents_in_order() -> None:
    options = PackingOptions(use_sequence_packing=True)
    given = replace(cell(dp=2), options=options, micro_batch_size=1)
    lengths = [document.length for document in given.documents_of(0)]
    assert [example["num_actions"] for example in examples(given, 0)] == lengths


def test_a_value_of_another_slot_is_named() -> None:
    micro = StepTruth(cell(), 0, 0).micro_batches[0]
    item = micro.plan.placed[1]
    stream = torch.arange(1.0, micro.plan.slots + 1)
    rows = by_document(stream, micro)
    rows[1, -item.document.length] = stream[0]
    seen = log_probs_seen(by_slot(rows, micro), stream[None], micro, 1, 0)
    assert (seen.mismatches, seen.first) == (1, [item.document.index, 0, item.start, 0])
    rows[1, -item.document.length] = -1.0
    found = log_probs_seen(by_slot(rows, micro), stream[None], micro, 1, 0).first
    assert found is not None and found[-1] == -1


def test_rows_of_another_shape_are_compared_as_far_as_they_go() -> None:
    micro = StepTruth(cell(), 0, 0).micro_batches[0]
    stream = torch.arange(1.0, micro.plan.slots + 1)
    assert log_probs_seen(by_slot(torch.zeros(1, 2), micro), stream[None], micro, 1, 0).mismatches
    wrong = log_probs_seen(by_slot(by_document(stream, micro), micro), stream[None, :-1], micro, 1, 0)
    assert wrong.shape == [1, micro.plan.slots - 1] and wrong.mismatches == micro.plan.slots
