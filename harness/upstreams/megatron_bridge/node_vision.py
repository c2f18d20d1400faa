"""Megatron-Bridge's vlm_step with images, up to the language model inside its Qwen3-VL model.

The model's own forward puts the features of images in place of their tokens, computes positions along three axes and
splits rows over context-parallel ranks. It is upstream's, here with stubs of its two parts: a tower whose features are
numbers, and a language model that records what it gets. A token's embedding is its id, so that the record shows which
token, or which feature of which image, each slot has.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.features.vision.config import IMAGE, MERGE
from harness.features.vision.node_model import hf_config, model_class
from harness.probe.model.gpt import transformer_config
from harness.probe.truth import MicroTruth
from harness.upstreams.megatron_bridge.node_step import BridgeStep, CalledModel
from harness.upstreams.node_base import Batch, RankContext


class VisionStep(BridgeStep):
    """Calls forward_step of vlm_step on one rank."""

    def __init__(self, context: RankContext, dataset: Any) -> None:
        super().__init__(context, dataset, "vlm_step")
        self.model = _stubbed(context)

    def whole(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        """Return the next micro-batch as the language model gets it, and as the step passes it to the model."""
        called = _CalledVision(self.model, self.sizes, embeds=self.context.is_first(chunk))
        with called.called_by(f"{self.forward_step.__module__}.forward_step"):
            _, loss = self.forward_step(self.state, iterator, called)
        mask, received = loss.args[0], self.model.language_model.given
        embedded = received["decoder_input"]
        return Batch(
            # Ids survive float32 exactly: vocabularies of cells are far below 2**24.
            tokens=None if embedded is None else embedded[..., 0].transpose(0, 1).long(),
            labels=received["labels"],
            loss_mask=None if mask is None else mask.float(),
            position_ids=received["position_ids"],
            params=received["packed_seq_params"],
            whole=called.given,
        )


def with_images(batch: dict[str, Any], micro: MicroTruth) -> dict[str, Any]:
    """Return a collated micro-batch with its images, as upstream's collators add them."""
    from megatron.bridge.training.utils import visual_inputs

    if micro.grids is None:
        return batch | {"visual_inputs": None}
    kind = getattr(visual_inputs, "GenericVisualInputs", None) or visual_inputs.Qwen2_5_VLVisualInputs
    return batch | {"visual_inputs": kind(pixel_values=micro.pixels, image_grid_thw=micro.grids)}


def tokens_found(embedded: Tensor, micro: MicroTruth, cp: int, cp_rank: int) -> Tensor:
    """Return the token ids of what is embedded, [rows, local slots]: IMAGE where a slot has its own feature of an
    image.
    """
    number = -((micro.tokens == IMAGE).cumsum(0))  # of the feature that belongs to each slot, as _Tower numbers them
    has_own_feature = (embedded < 0) & (embedded == micro.local(number, cp, cp_rank).to(embedded.device))
    return torch.where(has_own_feature, IMAGE, embedded)


class _CalledVision(CalledModel):
    def __init__(self, model: Any, config: Any, *, embeds: bool) -> None:
        super().__init__(config, None, embeds=embeds)
        self.model = model

    def __call__(self, **given: Any) -> Any:
        self.given = given
        return self.model(**given)


def _stubbed(context: RankContext) -> Any:
    """Return upstream's model without its parts, whose forward calls the stubs instead."""
    config, vision = context.config, context.config.model.vision
    assert vision is not None
    upstream = transformer_config(config)
    upstream.sequence_parallel = False  # ranks of tp then get all slots of their context-parallel rank
    ends = {"pre_process": context.is_first(0), "post_process": context.is_last(0)}
    model = model_class()(upstream, None, hf_config(config.model, vision), add_encoder=False, add_decoder=False, **ends)
    model.vision_model, model.language_model = _Tower(vision.deepstack), _Language()
    return model


class _Tower:
    """Stub of the tower: the n-th image token of a micro-batch gets the feature -n, from 1, wherever it is used."""

    def __init__(self, deepstack: int) -> None:
        self.deepstack = deepstack
        self.config = SimpleNamespace(deepstack_visual_indexes=list(range(deepstack)))

    def __call__(self, *, hidden_states: Tensor, grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        count = hidden_states.shape[0] // MERGE**2
        # Negative, since token ids are not: a feature cannot be mistaken for a token.
        features = -torch.arange(1, count + 1, dtype=torch.float32)[:, None]
        return features, [features] * self.deepstack


class _Language:
    """Stub of the language model, which keeps its arguments."""

    def __init__(self) -> None:
        self.rotary_pos_emb = SimpleNamespace(is_thd_format=False)
        self.given: dict[str, Any] = {}

    def embedding(self, *, input_ids: Tensor, position_ids: Tensor | None) -> Tensor:
        return input_ids.transpose(0, 1)[..., None].float()

    def __call__(self, **given: Any) -> Tensor:
        self.given = given
        return torch.empty(0)
