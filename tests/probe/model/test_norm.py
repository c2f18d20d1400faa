"""Norms of Megatron's local layers: upstream's where it takes the cell, else the harness's, which agrees with it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.upstream import TORCH_NORM
from harness.probe.model.norm import Norm, norm_of, replaced
from tests.runtime.conftest import config


def upstream(normalization: str, **more: Any) -> Any:
    fields = {"params_dtype": torch.float32, "sequence_parallel": False, "layernorm_zero_centered_gamma": False}
    off = {"persist_layer_norm": False, "memory_efficient_layer_norm": False}
    return SimpleNamespace(normalization=normalization, **fields | off | more)


@pytest.mark.parametrize(
    ("cell", "own"),
    [
        (config(), False),
        (config(tp=2), True),
        (replace(config(), model=ModelConfig(layernorm_1p=True)), True),
        (replace(config(), model=ModelConfig(normalization="LayerNorm")), False),
    ],
)
def test_the_harness_norm_stands_in_where_upstream_refuses_the_cell_and_is_recorded(
    cell: CellConfig, own: bool
) -> None:
    assert norm_of(cell) is (Norm if own else WrappedTorchNorm)
    assert replaced(cell) == ([TORCH_NORM] if own else [])
    assert f"{WrappedTorchNorm.__module__}.{WrappedTorchNorm.__qualname__}" == TORCH_NORM


@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("centred", [False, True])
def test_the_harness_norm_computes_what_upstream_s_does_with_1_more_where_weights_are_centred(
    kind: str, centred: bool
) -> None:
    own = Norm(upstream(kind, layernorm_zero_centered_gamma=centred, sequence_parallel=True), 8, 0.1)
    theirs: Any = WrappedTorchNorm(upstream(kind), 8, 0.1)
    hidden, weights = torch.randn(5, 8), torch.randn(2, 8)
    with torch.no_grad():
        for number, (mine, other) in enumerate(zip(own.parameters(), theirs.parameters(), strict=True)):
            other.copy_(weights[number])
            mine.copy_(weights[number] - (1.0 if centred and number == 0 else 0.0))
    assert torch.allclose(own(hidden), theirs(hidden), atol=1e-6)
    assert all(parameter.sequence_parallel for parameter in own.parameters())
