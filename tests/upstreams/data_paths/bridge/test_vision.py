"""What shows which feature of an image a slot has; real releases run in matrices/vision.yaml."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.packing.documents import mix
from harness.features.vision.config import IMAGE, VisionConfig
from harness.oracle.drawing import END
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.megatron_bridge.node_in_batch import right_padded
from harness.upstreams.megatron_bridge.node_vision import tokens_found
from tests.runtime.conftest import config


def micros(cp: int = 2) -> list[MicroTruth]:
    base = config("bridge_in_batch", cp=cp)
    documents = mix("images", base.train.seq_length, 2)
    cell = replace(base, micro_batch_size=2, model=replace(base.model, vision=VisionConfig()), documents=documents)
    return StepTruth(cell, 0, 0).micro_batches


def embedded(micro: MicroTruth) -> torch.Tensor:
    """[slots]: the tokens, in place of those of images the numbers of their features."""
    image = micro.tokens == IMAGE
    return torch.where(image, -image.cumsum(0), micro.tokens)


@pytest.mark.parametrize("cp_rank", [0, 1])
def test_every_image_token_has_its_own_feature(cp_rank: int) -> None:
    for micro in micros():
        found = tokens_found(micro.local(embedded(micro), 2, cp_rank), micro, 2, cp_rank)
        assert torch.equal(found, micro.local(micro.tokens, 2, cp_rank))


def test_a_feature_of_another_token_stays_a_number() -> None:
    micro = next(micro for micro in micros() if micro.grids is not None)
    slots = (micro.tokens == IMAGE).nonzero().flatten()
    wrong = embedded(micro)
    wrong[slots[0]] = -2
    found = tokens_found(micro.local(wrong, 1, 0), micro, 1, 0)
    assert (found != micro.local(micro.tokens, 1, 0)).sum() == 1
    assert int(found[0, slots[0]]) == -2


def test_rows_with_images_hold_the_last_token_which_has_no_label() -> None:
    for micro in micros():
        batch = right_padded(micro)
        for row, item in enumerate(micro.plan.placed):
            last = item.document.length
            assert int(batch["attention_mask"][row].sum()) == last + 1
            assert (int(batch["tokens"][row, last]), int(batch["loss_mask"][row, last])) == (END, 0)
