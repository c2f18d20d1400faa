"""Norms of Megatron's local layers: upstream's own where it takes the cell, else one of the harness."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.upstream import TORCH_NORM


def replaced(config: CellConfig) -> list[str]:
    """Return the dotted name of upstream's norm if the cell has the harness's in its place: where upstream's refuses
    it, with sequence parallelism and with weights to which 1 is added.
    """
    return [TORCH_NORM] if config.layout.sp or config.model.layernorm_1p else []


def norm_of(config: CellConfig) -> Any:
    """Return the class of a cell's norms: that of upstream's local layers, or the harness's."""
    return Norm if replaced(config) else WrappedTorchNorm


class Norm(torch.nn.Module):
    """RMSNorm or LayerNorm over the last dimension; with sp the gradients of its weights are reduced over tp."""

    def __init__(self, config: Any = None, hidden_size: int = 0, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.size, self.eps = (hidden_size,), eps
        self.added = 1.0 if config.layernorm_zero_centered_gamma else 0.0
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.bias = None
        if config.normalization == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        weight = self.weight + self.added if self.added else self.weight
        if self.bias is None:
            return F.rms_norm(hidden, self.size, weight, self.eps)
        return F.layer_norm(hidden, self.size, weight, self.bias, self.eps)
