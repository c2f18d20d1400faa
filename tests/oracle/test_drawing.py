"""Weights, tokens and pixels that both sides draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.features.vision.config import IMAGE, TOWER, VIDEO, VISION_START, VisionConfig
from harness.oracle.drawing import (
    ADAPTER_STD,
    END,
    INITIAL_STD,
    OTHER_PADDING,
    content_tokens,
    document_pixels,
    document_tokens,
    draw,
    initial_weight,
)
from tests.oracle.test_train import cell

LONG = 20_000


def document(index: int = 0, tokens: int = 21, **more: int | bool | None) -> Document:
    return Document(index=index, length=tokens - 1, original_length=tokens - 1, **more)  # type: ignore[arg-type]


def seeing(config: CellConfig) -> CellConfig:
    return replace(config, model=replace(config.model, vision=VisionConfig()))


def test_what_is_drawn_is_that_of_earlier_versions() -> None:
    """Which may have made the checkpoint from which a cell resumes."""
    near = pytest.approx
    assert draw("kind", "name", (1, 2), 5)[0].tolist() == near([1.170013, 0.030490], abs=1e-5)
    assert initial_weight("a.weight", (1, 2), 5)[0].tolist() == near([0.0176881, -0.0167709], abs=1e-6)
    assert content_tokens(cell(), 1, 2, 6).tolist() == [59, 15, 32, 103, 5, END]
    assert content_tokens(cell(), 1, 2, 6, changed=True).tolist() == [17, 102, 32, 35, 122, END]
    for changed, values in ((False, [-0.513954, -0.912930, -1.265103]), (True, [1.184165, 0.432296, -0.705400])):
        (image,) = document_pixels(seeing(cell()), 1, document(2, most_images=1), changed=changed)
        assert image[0, :3].tolist() == near(values, abs=1e-4)


def of(name: str, *shape: int) -> tuple[float, float]:
    """Mean and standard deviation of an initial weight."""
    weight = initial_weight(name, shape, 1)
    assert weight.dtype == torch.float32 and weight.shape == shape
    return float(weight.mean()), float(weight.std())


def test_matrices_begin_around_zero_and_adapters_further_from_it() -> None:
    assert of("decoder.layers.0.mlp.linear_fc1.weight", 100, 200) == pytest.approx((0, INITIAL_STD), abs=5e-4)
    for part in ("linear_in", "linear_out"):
        assert of(f"decoder.layers.0.mlp.linear_fc1.adapter.{part}.weight", 100, 200) == pytest.approx(
            (0, ADAPTER_STD), abs=1e-3
        )


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("decoder.final_layernorm.weight", 1.0),
        ("decoder.layers.0.mlp.linear_fc1.bias", 0.0),
        (f"{TOWER}decoder.layers.0.input_layernorm.weight", 1.0),
        (f"{TOWER}decoder.layers.0.mlp.linear_fc1.bias", 0.0),
        ("decoder.layers.0.mixer.dt_bias", -3.0),
        ("decoder.layers.0.mixer.A_log", 1.0),
    ],
)
def test_vectors_begin_around_one_but_biases_and_time_steps(name: str, mean: float) -> None:
    assert of(name, LONG) == pytest.approx((mean, INITIAL_STD), abs=1e-3)


def test_weights_differ_by_name_and_seed() -> None:
    drawn = [initial_weight(name, (3, 4), seed) for name in ("a.weight", "b.weight") for seed in (1, 2)]
    assert len({tuple(weight.flatten().tolist()) for weight in drawn}) == 4


def test_tokens_are_all_that_are_not_reserved_and_the_last_one_ends() -> None:
    for config, reserved in ((cell(), OTHER_PADDING), (seeing(cell()), VIDEO)):
        tokens = content_tokens(config, 0, 0, LONG).tolist()
        assert set(tokens[:-1]) == set(range(reserved + 1, config.model.vocab))
        assert tokens[-1] == END


def different(*drawn: Tensor) -> bool:
    return len({tuple(one.flatten().tolist()) for one in drawn}) == len(drawn)


def test_documents_of_other_steps_indices_and_content_differ() -> None:
    config = cell()
    other = replace(config, train=replace(config.train, seed=config.train.seed + 1))
    assert different(
        document_tokens(config, 0, document()),
        document_tokens(config, 1, document()),
        document_tokens(config, 0, document(1)),
        document_tokens(config, 0, document(), changed=True),
        document_tokens(other, 0, document()),
    )


def test_a_copy_has_the_tokens_and_images_of_its_original() -> None:
    config = seeing(cell())
    original, copy = document(1, most_images=2), document(4, most_images=2, copy_of=1)
    assert torch.equal(document_tokens(config, 0, copy), document_tokens(config, 0, original))
    for one, other in zip(document_pixels(config, 0, copy), document_pixels(config, 0, original), strict=True):
        assert torch.equal(one, other)


def test_a_document_has_its_tokens_before_truncation() -> None:
    cut = Document(index=0, length=4, original_length=9)
    assert len(document_tokens(cell(), 0, cut)) == 10
    assert torch.equal(document_tokens(cell(), 0, cut), content_tokens(cell(), 0, 0, 10))


def test_a_document_of_upstreams_mock_data_counts_its_tokens() -> None:
    assert document_tokens(cell(), 0, document(7, 6, mock=True)).tolist() == [1, 2, 3, 4, 5, END]


def test_delimited_messages_end_as_documents_do() -> None:
    plain, delimited = (document(tokens=18, turns=3, delimited=given) for given in (False, True))
    ends = document_tokens(cell(), 0, delimited) == END
    assert ends.nonzero().flatten().tolist() == [1, 5, 7, 11, 13, 17]
    assert torch.equal(document_tokens(cell(), 0, delimited)[~ends], document_tokens(cell(), 0, plain)[~ends])


def test_images_replace_tokens_and_one_token_announces_each() -> None:
    seen = document(tokens=21, most_images=2)
    tokens, plain = (document_tokens(seeing(cell()), 0, one) for one in (seen, document(tokens=21)))
    right = plain.tolist()
    right[1:8] = [VISION_START, *[IMAGE] * 6]
    right[9:12] = [VISION_START, *[IMAGE] * 2]
    assert tokens.tolist() == right


def test_images_have_a_row_of_colours_for_each_patch_and_differ() -> None:
    config = seeing(cell())
    seen = document(most_images=2)
    images = document_pixels(config, 0, seen)
    assert [image.shape for image in images] == [(24, 12), (8, 12)]
    other = replace(config, train=replace(config.train, seed=config.train.seed + 1))
    assert different(
        *images,
        *document_pixels(config, 1, seen),
        *document_pixels(config, 0, document(5, most_images=2)),
        *document_pixels(config, 0, seen, changed=True),
        *document_pixels(other, 0, seen),
    )
