"""Injections into attention: they patch megatron.core.transformer.multi_latent_attention, 0.17 to 0.19, or change the
settings of the harness's reference attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.faults.node_fault import Fault, injects
from harness.faults.node_numerics import RopeByRealOffsets
from harness.probe.model.gpt import unwrap
from harness.upstreams.node_base import RankContext


@injects("latent-rope-by-real-offsets")
class LatentRopeByRealOffsets(RopeByRealOffsets):
    """Rotate latent attention by the real offsets in place of the padded ones."""

    on_model = RopeByRealOffsets.on_model
    module = "megatron.core.transformer.multi_latent_attention"

    @staticmethod
    def table(chunks: list[Any], length: int) -> Tensor:
        attention = unwrap(chunks[0]).decoder.layers[0].self_attention
        return attention.rotary_pos_emb(length, packed_seq=True)  # type: ignore[no-any-return]


def _core_attention(chunks: list[Any]) -> dict[int, Any]:
    """Return the core attention of each layer, by the layer's global number."""
    layers = (layer for chunk in chunks for layer in unwrap(chunk).decoder.layers)
    return {layer.layer_number: layer.self_attention.core_attention for layer in layers}


@injects("window-one-token-longer-on-one-tp-rank")
class WindowOneTokenLongerOnOneTpRank(Fault):
    """Let the heads of one tp rank attend to one token more than the window."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for number, attention in _core_attention(chunks).items():
            if context.place.tp == 1 and number > 1:
                attention.window += 1


@injects("window-of-the-wrong-layers")
class WindowOfTheWrongLayers(Fault):
    """Give the second stage's layers without a window one, and the others none."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        window = context.config.model.window
        for attention in _core_attention(chunks).values() if context.place.pp == 1 else ():
            attention.window = window if attention.window is None else None


@injects("softmax-scale-dropped-on-one-stage")
class SoftmaxScaleDroppedOnOneStage(Fault):
    """Drop the softmax scale on the second stage: attention falls back to 1 / sqrt(head size)."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for attention in _core_attention(chunks).values() if context.place.pp == 1 else ():
            attention.softmax_scale = None
