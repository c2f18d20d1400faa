"""Multi-token prediction of a cell's model."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.setting import count, setting


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """Multi-token prediction: layers after the last one that predict tokens further ahead."""

    layers: int = count(1, "Number of MTP layers (prediction depth).", le=64, upstream="mtp_num_layers")
    loss_factor: float = setting(
        0.1,
        doc="Weight of their mean loss; with 0 they would have no gradients to compare.",
        gt=0,
        le=1e6,
        upstream="mtp_loss_scaling_factor",
    )
    stage: int | None = count(None, "Pipeline stage that reads batches for them; null: the last.", ge=0, le=4_096)

    def __str__(self) -> str:
        return f"mtp{self.layers}{'' if self.stage is None else f'-stage{self.stage}'}"
