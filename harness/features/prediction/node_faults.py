"""Injections into multi-token prediction: they patch megatron.core.transformer.multi_token_prediction, 0.17 to 0.19."""

from __future__ import annotations

import importlib
from typing import Any

from harness.faults.node_fault import Fault, injects
from harness.probe.model.gpt import unwrap
from harness.upstreams.node_base import RankContext


@injects("prediction-rolls-across-documents")
class PredictionRollsAcrossDocuments(Fault):
    """Shift the tokens of prediction layers over the whole row instead of within documents."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.multi_token_prediction")
        upstream = module.roll_tensor

        def wrong(*args: Any, packed_seq_params: Any = None, **kwargs: Any) -> Any:
            return upstream(*args, **kwargs)

        module.roll_tensor = wrong  # type: ignore[attr-defined]


@injects("prediction-without-loss-mask")
class PredictionWithoutLossMask(Fault):
    """Call the model without a loss mask, so that prediction layers count masked tokens."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def drop(module: Any, args: Any, kwargs: Any) -> Any:
            return args, kwargs | {"loss_mask": None}

        for chunk in chunks:
            unwrap(chunk).register_forward_pre_hook(drop, with_kwargs=True)
