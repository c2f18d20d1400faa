"""Installs the hooks on routers and prediction heads, if the model has any."""

from __future__ import annotations

from typing import Any

from harness.node.data_paths.base import RankContext
from harness.node.probe.hooks.layers import PassState
from harness.node.probe.hooks.prediction import PredictionRecorder
from harness.node.probe.hooks.routers import RouterRecorder
from harness.node.probe.model.parts import routers_of
from harness.node.recording.recorder import Recorder


def record_parts(chunks: list[Any], context: RankContext, state: PassState, recorder: Recorder) -> None:
    """Install the hooks on `chunks`, the modules inside DDP, in order. Prediction layers are numbered last."""
    model = context.config.model
    if model.moe:
        routers = {n: router for chunk in chunks for n, router in routers_of(chunk, model.layers).items()}
        RouterRecorder(routers, context, state, recorder)
    if model.mtp and context.is_last(len(chunks) - 1):
        PredictionRecorder(chunks[-1], model.mtp.layers, state, recorder)
