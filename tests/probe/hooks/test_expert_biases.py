"""What routers keep between passes."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import torch

from harness.features.experts.node_routers import reset_routers


class Router(torch.nn.Module):
    """Keeps what megatron.core.transformer.moe.router.TopKRouter keeps, under its names."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("expert_bias", "local_tokens_per_expert", "global_tokens_per_expert", "ga_steps"):
            self.register_buffer(name, torch.ones(4))

    def reset_global_aux_loss_tracker(self) -> None:
        for name in ("global_tokens_per_expert", "ga_steps"):
            getattr(self, name).zero_()


def test_nothing_of_a_pass_is_left_in_a_router_with_biases_or_without() -> None:
    other: Any = torch.nn.Linear(2, 2)
    other.expert_bias = other.local_tokens_per_expert = None
    model, weight = torch.nn.Sequential(Router(), other), other.weight.clone()
    reset_routers([model])
    assert all(not buffer.any() for buffer in model.buffers())
    assert torch.equal(other.weight, weight)


def test_upstreams_router_keeps_nothing_else() -> None:
    """But for what quantile balancing keeps, which no model of the harness has."""
    router = importlib.import_module("megatron.core.transformer.moe.router").TopKRouter
    buffers = set(re.findall(r"register_buffer\(\s*['\"](\w+)", inspect.getsource(router)))
    assert {name for name in buffers if not name.startswith("qb_")} == {name for name, _ in Router().named_buffers()}
