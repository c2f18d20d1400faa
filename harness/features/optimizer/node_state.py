"""Megatron's optimizers from outside: their copy of a weight, and Adam's moments, gathered if replicas hold shards.

Checked against megatron.core.optimizer, 0.14 to 0.19: FP32Optimizer, Float16OptimizerWithFloat16Params,
DistributedOptimizer and ChainedOptimizer, without precision-aware state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MixedPrecisionOptimizer
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")  # names in torch.optim.Adam, apex and Transformer Engine


class Held(NamedTuple):
    """What this rank's optimizer holds of a parameter."""

    weight: Tensor | None  # None: other ranks hold all of it
    state: Mapping[str, Tensor]  # empty before the first update
    start: int = 0  # of the shard in the flat parameter
    group: dist.ProcessGroup | None = None  # whose ranks hold the other shards; None: the weight is whole


def held_by(optimizer: Any) -> dict[Tensor, Held]:
    """Return what the optimizer holds of each parameter of the model."""
    by_parameter: dict[Tensor, Held] = {}
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        by_parameter |= _sharded(part) if isinstance(part, DistributedOptimizer) else _whole(part)
    return by_parameter


def _sharded(optimizer: Any) -> dict[Tensor, Held]:
    """Return what a rank holds of a DistributedOptimizer: a range of some parameters' elements."""
    by_parameter = {}
    for parameter in (candidate for buffer in optimizer.buffers for candidate in buffer.params):
        place = optimizer.model_param_group_index_map.get(parameter)
        # Shards cut the flat buffer anywhere, so a rank may hold nothing of a small parameter.
        if place is None:
            by_parameter[parameter] = Held(None, {}, group=optimizer.data_parallel_group)
            continue
        group, number = place
        weight = optimizer.optimizer.param_groups[group]["params"][number]
        start = optimizer._get_model_param_range_map(parameter)["param"].start
        by_parameter[parameter] = Held(
            weight, optimizer.optimizer.state.get(weight, {}), start, optimizer.data_parallel_group
        )
    return by_parameter


def _whole(optimizer: Any) -> dict[Tensor, Held]:
    inner = optimizer.optimizer
    weight_of = {weight: weight for group in inner.param_groups for weight in group["params"]}
    rounded = isinstance(optimizer, MixedPrecisionOptimizer)
    # Weights that are fp32 in the model too, such as a router's, are their own copies.
    copies = zip(optimizer.float16_groups, optimizer.fp32_from_float16_groups, strict=True) if rounded else ()
    for models, weights in copies:
        for parameter, weight in zip(models, weights, strict=True):
            weight_of.pop(weight)
            weight_of[parameter] = weight
    return {parameter: Held(weight, inner.state.get(weight, {})) for parameter, weight in weight_of.items()}


def decay_of(optimizer: Any, weight: Tensor) -> float:
    """Return the weight decay of the group that holds an optimizer's copy of a weight."""
    groups = (
        group
        for part in getattr(optimizer, "chained_optimizers", [optimizer])
        for group in part.optimizer.param_groups
        if any(weight is member for member in group["params"])
    )
    return float(next(groups)["weight_decay"])


def group_values(optimizer: Any, name: str) -> list[float]:
    """Return the distinct values, sorted, that the optimizer's groups of parameters have under a name, such as "lr"."""
    parts = (chained.optimizer for chained in getattr(optimizer, "chained_optimizers", [optimizer]))
    return sorted({float(group[name]) for part in parts if part is not None for group in part.param_groups})


def updates_of(optimizer: Any) -> int:
    """Return the number of updates that Adam has counted: FusedAdam for each group of parameters, torch's for each
    parameter.

    -1 if they differ.
    """
    counts: set[int] = set()
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = part.optimizer
        counts |= {int(group["step"]) for group in inner.param_groups if group["params"] and "step" in group}
        counts |= {int(state["step"]) for state in inner.state.values() if "step" in state}
    return max(counts, default=0) if len(counts) <= 1 else -1


def whole(held: Held, part: Tensor | None, parameter: Tensor) -> Tensor:
    """Return a float32 tensor of the parameter's shape, from this rank's part; zeros for what no rank has.

    Collective over the ranks that hold shards.
    """
    if held.group is None:
        return torch.zeros_like(parameter, dtype=torch.float32) if part is None else part.detach().float()
    flat = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
    if part is not None:
        flat[held.start : held.start + part.numel()] = part.detach().flatten().float()
    # Each element is on one rank and 0 on the others, so the sum is exact.
    dist.all_reduce(flat, group=held.group)
    return flat.view(parameter.shape)


def norm_function(optimizer: Any) -> str:
    """Return the name of the method that returns the gradients which the gradient norm counts on this rank."""
    return (
        "get_grads_for_grad_norm" if hasattr(optimizer, "get_grads_for_grad_norm") else "get_main_grads_for_grad_norm"
    )


def counted_in_norm(optimizer: Any) -> dict[Tensor, bool] | None:
    """Return whether upstream's gradient norm counts the gradient of each of the model's parameters, or a shard of it,
    on this rank.

    After an update, before the gradients are dropped; None if there are none, since no update took place. Collective
    over the ranks that hold shards.
    """
    held = held_by(optimizer)
    if all(part_held.weight is None or part_held.weight.grad is None for part_held in held.values()):
        return None
    counted: list[Tensor] = []
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        counted += getattr(part, norm_function(part))()
    # By identity: upstream returns the very tensors, and two parameters may have equal gradients.
    flags, counted_ids = {}, {id(gradient) for gradient in counted}
    for parameter, part_held in held.items():
        is_counted = part_held.weight is not None and id(part_held.weight.grad) in counted_ids
        flag = torch.tensor(int(is_counted), device=parameter.device)
        if part_held.group is not None:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=part_held.group)
        flags[parameter] = bool(flag)
    return flags
