"""Faults in multi-token prediction."""

from __future__ import annotations

from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Lane
from harness.faults.spec import ONE, PP, FaultSpec
from harness.features.prediction.config import MtpConfig

_PREDICTING = ModelConfig(layers=2, mtp=MtpConfig())


PREDICTION: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="prediction-rolls-across-documents",
        fault_class="model",
        summary="multi-token prediction shifts tokens and labels over the whole row: documents see the next one",
        modelled_on="B5 and MTP of 1.4: NVIDIA/Megatron-LM roll_tensor before packed sequences; d8144e7712",
        layout=PP,
        why="two stages, so that the last can be named",
        model=_PREDICTING,
        lane=Lane.NUMERICS,
        checks=("mtp_loss", "parameter_gradients"),
        where={"stage": 1, "step": 0, "depth": 1, "document": 0},
    ),
    FaultSpec(
        name="prediction-without-loss-mask",
        fault_class="model",
        summary="multi-token prediction gets no loss mask, so it trains on masked documents too",
        modelled_on="D9: NVIDIA/Megatron-LM a22c40e8d6 (PR 3159), the token counts of MTP",
        layout=ONE,
        why="one rank with a masked document",
        model=_PREDICTING,
        lane=Lane.NUMERICS,
        checks=("mtp_loss",),
        where={"stage": 0, "step": 0, "depth": 1},
    ),
)
