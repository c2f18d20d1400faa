"""Grouped experts: upstream's TEGroupedMLP, on a CPU with a stand-in for Transformer Engine's grouped linear layers.

Upstream's code permutes tokens, counts them per expert, applies activations and probabilities, and shards checkpoints;
only the layer that multiplies each expert's tokens by its weight is the harness's, since Transformer Engine's needs
CUDA. Its parameters have the names, shapes and marks of upstream's: `weight0` to `weightN` (megatron-core 0.19).
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.upstreams.node_lookup import release

_ENGINE = "megatron.core.extensions.transformer_engine"
_MARKS = "_set_expert_parameter_attributes"
_LAYERS = ("TEColumnParallelGroupedLinear", "TERowParallelGroupedLinear")


def _asked(config: CellConfig) -> bool:
    return config.model.moe is not None and config.model.moe.grouped


def unsupported(config: CellConfig) -> str | None:
    """Return why this megatron-core cannot be given the cell's grouped experts; None when it can."""
    if not _asked(config):
        return None
    experts: Any = importlib.import_module("megatron.core.transformer.moe.experts")
    if hasattr(experts, "GroupedMLPSubmodules") and hasattr(importlib.import_module(_ENGINE), _MARKS):
        return None
    return f"{release('megatron.core')} builds grouped experts otherwise: model.moe.grouped needs 0.19 or later"


def unsupported_kernel(config: CellConfig, device: str) -> str | None:
    """Return why grouped experts cannot run on `device`, "cpu" or "cuda"; None when they can."""
    if not _asked(config) or device == "cpu":
        return None
    if getattr(importlib.import_module(_ENGINE), _LAYERS[0], None) is None:
        return "model.moe.grouped needs Transformer Engine on a GPU, which the stack does not have"
    return None


def install(config: CellConfig, device: str) -> list[str]:
    """Build grouped experts where upstream's local layers have single ones; return the dotted names of stand-ins.

    `device`: "cpu" or "cuda"; on the latter the layers are Transformer Engine's.
    """
    if not _asked(config):
        return []
    backends: Any = importlib.import_module("megatron.core.models.backends")
    experts: Any = importlib.import_module("megatron.core.transformer.moe.experts")
    local = backends.LocalSpecProvider
    single = local.grouped_mlp_modules
    fc1, fc2 = (partial(GroupedLinear, mode=mode) for mode in ("column", "row"))
    if device != "cpu":
        fc1, fc2 = (getattr(importlib.import_module(_ENGINE), name) for name in _LAYERS)
    linears = experts.GroupedMLPSubmodules(linear_fc1=fc1, linear_fc2=fc2)

    def modules(self: Any, moe_use_grouped_gemm: bool) -> Any:
        # As TESpecProvider chooses; a local layer always has single experts.
        return partial(experts.TEGroupedMLP, submodules=linears) if moe_use_grouped_gemm else single(self, False)

    local.grouped_mlp_modules = modules
    return [f"{_ENGINE}.{name}" for name in _LAYERS] if device == "cpu" else []


class GroupedLinear(torch.nn.Module):
    """TEColumnParallelGroupedLinear or TERowParallelGroupedLinear: a linear layer per expert of this rank.

    `mode`: "column" or "row". Tensor parallel ranks have a part of each weight, [out / tp, in] or [out, in / tp].
    Exchanges between ranks are the dispatcher's, as upstream's class leaves them to it.
    """

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        mode: str,
        config: Any,
        bias: bool,
        skip_bias_add: bool,
        pg_collection: Any,
        **_: Any,
    ) -> None:
        super().__init__()
        self.num_gemms, self.mode, self.groups = num_gemms, mode, pg_collection
        self.use_bias, self.returns_bias = bias, bias and skip_bias_add
        size = pg_collection.expt_tp.size()
        out, into = (output_size // size, input_size) if mode == "column" else (output_size, input_size // size)
        for number in range(num_gemms):
            self.register_parameter(f"weight{number}", _empty(config, out, into))
            if bias:
                self.register_parameter(f"bias{number}", _empty(config, out))
        split_otherwise = config.expert_tensor_parallel_size != config.tensor_model_parallel_size
        marks = getattr(importlib.import_module(_ENGINE), _MARKS)
        marks(self, mode, config.expert_model_parallel_size > 1 or split_otherwise)

    def forward(self, hidden: Tensor, tokens_per_expert: list[int]) -> tuple[Tensor, list[Tensor] | None]:
        """Return [t, out], and the biases that the caller adds, if there are any.

        `hidden`: [t, in], the tokens of one expert after those of another.
        """
        weights = [self.get_parameter(f"weight{number}") for number in range(self.num_gemms)]
        biases: list[Tensor] | None = None
        added: list[Tensor | None] = [None] * self.num_gemms
        if self.use_bias:
            biases = [self.get_parameter(f"bias{number}") for number in range(self.num_gemms)]
            added = added if self.returns_bias else [*biases]
        parts = torch.split(hidden, tokens_per_expert)
        output = torch.cat([F.linear(*each) for each in zip(parts, weights, added, strict=True)])
        return output, biases if self.returns_bias else None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return upstream's sharded tensors, under the names that those of single experts have in a checkpoint."""
        utils: Any = importlib.import_module("megatron.core.transformer.utils")
        ranks, first = self.groups.ep.size(), self.groups.ep.rank() * self.num_gemms
        axes = {"weight": 0, "bias": 0} if self.mode == "column" else {"weight": 1}
        found: dict[str, Any] = {}
        for number in range(self.num_gemms):
            names = ("weight", "bias") if self.use_bias else ("weight",)
            place = (len(sharded_offsets), first + number, ranks * self.num_gemms)
            shards = utils.make_sharded_tensors_for_checkpoint(
                {name: self.get_parameter(f"{name}{number}") for name in names},
                prefix,
                axes,
                (*sharded_offsets, place),
                tp_group=self.groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            for name in names:
                shard = shards[f"{prefix}{name}"]
                # Experts have replicas of their own.
                shard.replica_id = (*shard.replica_id[:2], self.groups.expt_dp.rank())
                found[f"{prefix}{name}{number}"] = shard
        return found


def _empty(config: Any, *shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
