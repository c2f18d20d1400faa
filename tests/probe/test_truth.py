from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.packing.arithmetic import PAD
from harness.core.packing.documents import DocumentsMode, mix
from harness.core.packing.options import PackingOptions
from harness.features.vision.config import IMAGE, VISION_START, VisionConfig
from harness.oracle.drawing import END
from harness.probe.truth import StepTruth, first_difference
from tests.runtime.conftest import config


def test_labels_are_the_tokens_shifted_by_one_inside_each_document() -> None:
    for micro in StepTruth(config(), 0, 0).micro_batches:
        for item in micro.plan.placed:
            real = slice(item.start, item.start + item.document.length)
            assert torch.equal(micro.labels[real][:-1], micro.tokens[real][1:])
            assert micro.position_ids[real].tolist() == list(range(item.document.length))


def test_the_loss_mask_leaves_out_padding_and_masked_documents() -> None:
    micros = StepTruth(config(cp=2), 0, 0).micro_batches
    assert sum(int(micro.loss_mask.sum()) for micro in micros) == sum(micro.plan.loss_tokens for micro in micros)
    for micro in micros:
        assert not micro.loss_mask[micro.owners[:, 0] == PAD].any()


def test_a_copy_has_the_content_of_its_original() -> None:
    contents = {}
    for micro in StepTruth(config(), 0, 0).micro_batches:
        for item in micro.plan.placed:
            contents[item.document.index] = (item.document, micro.tokens[item.start :][: item.document.length])
    copies = [(document, tokens) for document, tokens in contents.values() if document.copy_of is not None]
    assert copies
    for document, tokens in copies:
        assert torch.equal(tokens, contents[document.copy_of][1])


def test_context_ranks_together_hold_every_slot_once() -> None:
    for data_path in ("unpacked", "reference", "sft"):
        for micro in StepTruth(config(data_path, cp=2), 0, 0).micro_batches:
            slots = torch.arange(micro.plan.slots)
            shares = torch.cat([micro.local(slots, 2, rank).flatten() for rank in range(2)])
            assert sorted(shares.tolist()) == slots.tolist()


def test_owners_are_those_of_the_plan_with_the_tails_of_rows() -> None:
    made = replace(config("reference"), options=PackingOptions(pad_row_to_mult=48))
    for micro in StepTruth(made, 0, 0).micro_batches:
        assert any(row.tail for row in micro.plan.rows)
        assert micro.owners.tolist() == [list(owner) for owner in micro.plan.slot_owners()]


def test_the_first_difference_names_document_and_position_and_skips_padding() -> None:
    owners = torch.tensor([[[0, 0], [0, 1], [PAD, 2], [1, 0]]])
    expected = torch.tensor([[5, 6, 0, 7]])
    everywhere, real = torch.ones(1, 4, dtype=torch.bool), owners[..., 0] != PAD
    assert first_difference(expected, expected, owners, everywhere) == (0, None)
    assert first_difference(torch.tensor([[5, 6, 9, 7]]), expected, owners, real) == (0, None)
    assert first_difference(torch.tensor([[5, 6, 9, 7]]), expected, owners, everywhere) == (1, [PAD, 2, 0, 9])
    assert first_difference(torch.tensor([[5, 1, 9, 2]]), expected, owners, real) == (2, [0, 1, 6, 1])


def test_truncation_keeps_the_head_of_a_document() -> None:
    truth = StepTruth(config(), 0, 0)
    cut = [
        (micro, item)
        for micro in truth.micro_batches
        for item in micro.plan.placed
        if item.document.original_length > item.document.length
    ]
    assert cut
    for micro, item in cut:
        whole = truth.content(item.document)
        assert len(whole) == item.document.original_length + 1
        assert torch.equal(micro.tokens[item.start :][: item.document.length], whole[: item.document.length])


@pytest.mark.parametrize(("mode", "ended"), [("multi_turn", False), ("delimited", True)])
def test_messages_end_with_the_token_that_ends_documents_only_if_they_are_delimited(
    mode: DocumentsMode, ended: bool
) -> None:
    truth = StepTruth(replace(config(), documents=mix(mode, 64, 2)), 0, 0)
    talked = [document for document in truth.documents if len(document.messages) > 2]
    assert talked
    for document in talked:
        ids = truth.content(document).tolist()
        assert ids[-1] == END
        assert {ids[message.end - 1] == END for message in document.messages[:-1]} == {ended}
        assert ids.count(END) == (len(document.messages) if ended else 1)


def seeing(images: int = 2) -> StepTruth:
    base = config(cp=2)
    documents = replace(mix("images", base.train.seq_length, 2), images=images)
    return StepTruth(replace(base, model=replace(base.model, vision=VisionConfig()), documents=documents), 0, 0)


def test_image_tokens_are_where_the_document_has_images_and_nowhere_else() -> None:
    for micro in seeing().micro_batches:
        images = [image for item in micro.plan.placed for image in item.document.images]
        assert int((micro.tokens == IMAGE).sum()) == sum(image.tokens for image in images)
        assert int((micro.tokens == VISION_START).sum()) == len(images)
        assert not micro.loss_mask[(micro.labels == IMAGE) | (micro.labels == VISION_START)].any()
        if images:
            assert micro.grids is not None
            assert micro.pixels is not None
            assert micro.pixels.shape[0] == int(micro.grids.prod(1).sum())
            assert micro.pixels.shape[0] == 4 * sum(image.tokens for image in images)


def test_positions_along_three_axes_start_again_at_each_document() -> None:
    for micro in seeing().micro_batches:
        for item in micro.plan.placed:
            assert micro.position_ids[item.start].tolist() == [0, 0, 0]


def test_documents_without_images_have_no_pixels() -> None:
    assert {micro.pixels for micro in seeing(images=0).micro_batches} == {None}


def test_a_difference_along_one_axis_is_found_and_padding_is_not_compared() -> None:
    owners = torch.tensor([[[0, 0], [0, 1], [PAD, 2]]])
    expected = torch.zeros(1, 3, 3, dtype=torch.int64)
    found = expected.clone()
    found[0, 2, 0] = 7
    counted = owners[..., 0] != PAD
    assert first_difference(found, expected, owners, counted) == (0, None)
    found[0, 1, 2] = 5
    assert first_difference(found, expected, owners, counted) == (1, [0, 1, 0, 5])
