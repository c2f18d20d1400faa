"""Injections into variants of attention: the settings of the harness's reference attention."""

from __future__ import annotations

from typing import Any

from harness.node.data_paths.base import RankContext
from harness.node.faults.fault import Fault
from harness.node.probe.model.gpt import unwrap


def _attention(chunks: list[Any]) -> dict[int, Any]:
    """Global number of a layer -> its core attention."""
    layers = (layer for chunk in chunks for layer in unwrap(chunk).decoder.layers)
    return {layer.layer_number: layer.self_attention.core_attention for layer in layers}


class WindowOneTokenLongerOnOneTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for number, attention in _attention(chunks).items():
            if context.place.tp == 1 and number > 1:
                attention.window += 1


class WindowOfTheWrongLayers(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        window = context.config.model.window
        for attention in _attention(chunks).values() if context.place.pp == 1 else ():
            attention.window = window if attention.window is None else None


class SoftmaxScaleDroppedOnOneStage(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for attention in _attention(chunks).values() if context.place.pp == 1 else ():
            attention.softmax_scale = None
