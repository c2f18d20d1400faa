"""RMSNorm that supports sequence parallelism, unlike the torch norm of Megatron's local spec."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RMSNorm(torch.nn.Module):
    """Root mean square norm over the last dimension; with sp the weight's gradient is reduced over tp."""

    def __init__(self, config: Any = None, hidden_size: int = 0, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # finalize_model_grads sums gradients over tp only of parameters with this mark; each rank saw only its own
        # slots.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)
