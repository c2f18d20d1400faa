"""The image tower and positions along three axes against Hugging Face's Qwen3-VL, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from harness.features.vision.config import IMAGE, Image, positions
from harness.oracle.attention import angles, frequencies
from harness.oracle.fields import Model, Rotary, Vision
from harness.oracle.loss import cross_entropy
from harness.oracle.model import forward
from harness.oracle.rows import Images, Stream
from harness.oracle.vision import image_features
from harness.oracle.weights import initial_weights
from tests.oracle.hugging_face import in_float64, module_of, renamed, renamed_tower
from tests.oracle.streams import stream

WITHIN = 1e-10
TOWER = Model(
    layers=3,
    hidden=16,
    vocab=0,
    heads=2,
    groups=2,
    head=8,
    ffn=24,
    normalization="LayerNorm",
    epsilon=1e-6,
    gated=False,
    activation="gelu",
    approximate=True,
    bias=True,
    qkv_bias=True,
    rotary=Rotary(planar=True),
    causal=False,
)
VISION = Vision(tower=TOWER, patch=(3, 2, 4, 4), merge=2, places=9, out=32, deepstack=(0, 2), token=IMAGE)
MODEL = Model(
    layers=3,
    hidden=32,
    vocab=64,
    heads=4,
    groups=2,
    head=16,
    ffn=48,
    epsilon=1e-6,
    qk_norm=True,
    rotary=Rotary(base=50_000, sections=(4, 2, 2)),
    vision=VISION,
)
# Two documents of 23 and 38 tokens. Their images are as long as wide, or not, or of one token.
IMAGES = ((Image(start=2, height=2, width=3),), (Image(start=4, height=1, width=1), Image(start=9, height=4, width=2)))
LENGTHS = (23, 38)


def weights_of(model: Model) -> dict[str, Tensor]:
    """Larger than the initial ones, so that nothing is nearly linear."""
    weights = initial_weights(model, 7, torch.float64)
    with torch.no_grad():
        for weight in weights.values():
            weight.mul_(8.0 if weight.dim() > 1 else 1.0)
    return weights


def with_images() -> Stream:
    """One row of the documents."""
    plain = stream(MODEL.vocab, LENGTHS)
    tokens = plain.tokens.where(plain.tokens != IMAGE, 0)
    for begin, images in zip((0, LENGTHS[0]), IMAGES):
        for image in images:
            tokens[begin + image.start : begin + image.end] = IMAGE
    grids = tuple(image.grid for images in IMAGES for image in images)
    patches = sum(height * width for _, height, width in grids)
    pixels = torch.randn(patches, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(5))
    axes = torch.cat([torch.tensor(positions(size, images)) for size, images in zip(LENGTHS, IMAGES)])
    return replace(plain, tokens=tokens, axes=axes, images=Images(pixels, grids))


def theirs() -> Any:
    """Their model in float64, with eager attention.

    The mergers of theirs have the exact GELU, those of Megatron-Bridge the function of the tower's configuration.
    """
    config = transformers.Qwen3VLConfig(
        vision_config={
            "depth": TOWER.layers,
            "hidden_size": TOWER.hidden,
            "num_heads": TOWER.heads,
            "intermediate_size": TOWER.ffn,
            "patch_size": 4,
            "temporal_patch_size": 2,
            "num_position_embeddings": VISION.places,
            "out_hidden_size": MODEL.hidden,
            "deepstack_visual_indexes": list(VISION.deepstack),
        },
        text_config={
            "vocab_size": MODEL.vocab,
            "hidden_size": MODEL.hidden,
            "intermediate_size": MODEL.ffn,
            "num_hidden_layers": MODEL.layers,
            "num_attention_heads": MODEL.heads,
            "num_key_value_heads": MODEL.groups,
            "head_dim": MODEL.head,
            "rms_norm_eps": MODEL.epsilon,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0, "mrope_section": [4, 2, 2]},
        },
        image_token_id=IMAGE,
        attn_implementation="eager",
    )
    model = module_of("qwen3_vl").Qwen3VLForConditionalGeneration(config).double()
    tower = model.model.visual
    for merger in (tower.merger, *tower.deepstack_merger_list):
        assert merger.act_fn.approximate == "none"
        merger.act_fn = torch.nn.GELU(approximate="tanh")
    return model


def off(found: Tensor, right: Tensor) -> float:
    """Relative distance."""
    return float(((found - right).norm() / right.norm()).detach())


def test_logits_losses_and_gradients_are_those_of_hugging_face() -> None:
    """On two documents, packed into one row here and computed one by one there, with positions of their own."""
    weights, rows = weights_of(MODEL), with_images()
    ours = forward(weights, MODEL, rows, {}).logits
    our_losses = cross_entropy(ours, rows.labels)
    our_losses.mean().backward()
    logits = []
    with in_float64(module_of("qwen3_vl")):
        other = theirs()
        names = renamed_tower(weights, VISION) | renamed(weights, MODEL, "model.language_model")
        other.load_state_dict(names)
        assert rows.images
        pixels = rows.images.pixels.double().split([sum(h * w for _, h, w in grids) for grids in grids_by_document()])
        for tokens, part, grids in zip(torch.split(rows.tokens, list(LENGTHS)), pixels, grids_by_document()):
            given = {"pixel_values": part, "image_grid_thw": torch.tensor(grids)}
            kinds = (tokens == IMAGE).int()[None]
            logits.append(other(tokens[None], mm_token_type_ids=kinds, use_cache=False, **given).logits[0])
        losses = F.cross_entropy(torch.cat(logits), rows.labels, reduction="none")
        losses.mean().backward()
    assert losses.dtype == torch.float64
    assert off(ours, torch.cat(logits)) < WITHIN
    assert off(our_losses, losses) < WITHIN
    right = {key: parameter.grad for key, parameter in other.named_parameters()}
    gradients = {key: weight.grad for key, weight in weights.items()}
    found = renamed_tower(gradients, VISION) | renamed(gradients, MODEL, "model.language_model")
    assert found.keys() == right.keys()
    wrong = {key: off(found[key], right[key]) for key in right}
    assert max(wrong.values()) < WITHIN, max(wrong, key=lambda key: wrong[key])


def grids_by_document() -> list[list[tuple[int, int, int]]]:
    return [[image.grid for image in images] for images in IMAGES]


def test_frames_of_an_image_attend_to_themselves_alone() -> None:
    """As theirs do; the harness's own images have one frame."""
    weights = weights_of(MODEL)
    grids = ((2, 4, 2), (1, 2, 6))
    pixels = torch.randn(28, 96, generator=torch.Generator().manual_seed(6))
    features, added = image_features(Images(pixels, grids), weights, VISION)
    with in_float64(module_of("qwen3_vl")):
        other = theirs()
        other.load_state_dict(renamed_tower(weights, VISION) | renamed(weights, MODEL, "model.language_model"))
        seen = other.model.visual(pixels.double(), grid_thw=torch.tensor(grids))
    assert off(features, seen.pooler_output) < WITHIN
    assert max(off(one, right) for one, right in zip(added, seen.deepstack_features, strict=True)) < WITHIN


def test_features_of_a_bf16_model_are_bf16() -> None:
    images = with_images().images
    assert images
    features, added = image_features(images, initial_weights(MODEL, 7, torch.bfloat16), VISION)
    assert {one.dtype for one in (features, *added)} == {torch.bfloat16}


def test_a_row_of_text_turns_as_without_axes() -> None:
    at = torch.arange(5)
    plain, axes = Rotary(base=100), Rotary(base=100, sections=(2, 1, 1))
    found = angles(at[:, None].expand(-1, 3), axes, 8, torch.float64)
    torch.testing.assert_close(found, angles(at, plain, 8, torch.float64))


@pytest.mark.parametrize(
    ("sections", "followed"),
    [((2, 1, 1), [0, 1, 2, 0]), ((4, 2, 2), [0, 1, 2, 0, 1, 2, 0, 0]), ((1, 1, 2), [0, 1, 2, 0])],
)
def test_frequencies_follow_their_axes_in_turn(sections: tuple[int, int, int], followed: list[int]) -> None:
    """As far as a section reaches; the second frequency of width would be the sixth, and a head of 8 has four."""
    rotary = Rotary(sections=sections)
    size = 2 * len(followed)
    found = angles(torch.tensor([[2, 3, 5]]), rotary, size, torch.float64)[0] / frequencies(rotary, size, torch.float64)
    assert found.round().int().tolist() == [(2, 3, 5)[axis] for axis in followed]
