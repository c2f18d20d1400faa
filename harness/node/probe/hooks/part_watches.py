"""The probe's hooks on routers and prediction heads, where the model has them."""

from __future__ import annotations

from typing import Any

from harness.node.data_paths.base import RankContext
from harness.node.probe.hooks.prediction import MtpWatch
from harness.node.probe.hooks.routers import RouterWatch
from harness.node.probe.hooks.witness import Position
from harness.node.probe.model.parts import mtp_layers
from harness.node.recording.recorder import Recorder


def watch_parts(chunks: list[Any], context: RankContext, position: Position, recorder: Recorder) -> None:
    """`chunks` are the modules inside DDP, in order; prediction layers are numbered after the last layer."""
    model = context.config.model
    if model.moe:
        layers = {layer.layer_number: layer for chunk in chunks for layer in chunk.decoder.layers}
        layers |= {model.layers + 1 + n: layer for chunk in chunks for n, layer in enumerate(mtp_layers(chunk))}
        RouterWatch(layers, context, position, recorder)
    if model.mtp and context.is_last(len(chunks) - 1):
        MtpWatch(chunks[-1], model.mtp.layers, position, recorder)
