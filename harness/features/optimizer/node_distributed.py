"""Megatron's DDP, and its optimizer, replicated or sharded over dp x cp.

Checked against megatron.core.distributed and .optimizer, 0.14 to 0.19. With overlap, schedules need DDP's own
functions, which megatron.training.train passes to them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.upstream_config import optimizer_fields, weight_decay
from harness.probe.model.groups import GLOBAL, Groups
from harness.runtime.recording.errors import UnknownNameError

_LARGEST_BUCKET = 40_000_000  # parameters: upstream's default, more than a small model has


def ddp_fields(config: CellConfig) -> dict[str, Any]:
    """Return DDP's configuration.

    With overlap, buckets hold about one feed-forward matrix: even two layers fill several.
    """
    overlap = config.distributed_optimizer == "overlap"
    return {
        # As Megatron's trainers set it for bf16; sums of bf16 would be under test instead of the layout.
        "grad_reduce_in_fp32": True,
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": overlap,
        "use_distributed_optimizer": config.distributed_optimizer != "off",
        "average_in_collective": config.options.average_in_collective,
        "bucket_size": min(config.model.hidden * config.model.ffn, _LARGEST_BUCKET) if overlap else None,
    }


def ddp_config(config: CellConfig) -> DistributedDataParallelConfig:
    """Return DDP's configuration, without fields that are off and that older releases lack."""
    accepted = _fields(DistributedDataParallelConfig)
    return DistributedDataParallelConfig(
        **{name: on for name, on in ddp_fields(config).items() if on or name in accepted}
    )


def _fields(upstream: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(upstream)}


def connect_schedule(upstream: Any, chunks: Sequence[DistributedDataParallel]) -> None:
    """Give schedules DDP's functions for overlap, as megatron.training.train does (with its default align_grad_reduce).

    `upstream`: the TransformerConfig that schedules read.
    """
    if not chunks[0].ddp_config.overlap_grad_reduce:
        return

    def one_or_all(functions: list[Callable[..., Any]]) -> Any:
        return functions if len(functions) > 1 else functions[0]

    upstream.no_sync_func = one_or_all([chunk.no_sync for chunk in chunks])
    upstream.grad_sync_func = one_or_all([chunk.start_grad_sync for chunk in chunks])


def build_optimizer(config: CellConfig, chunks: list[DistributedDataParallel], groups: Groups = GLOBAL) -> Any:
    """Build Megatron's Adam, without clipping unless the cell asks for it.

    The probe records the gradient norm itself.
    """
    # Groups over gloo are for checkpoints, and are not created next to NCCL.
    accepted = inspect.signature(get_megatron_optimizer).parameters
    more: dict[str, Any] = {"use_gloo_process_groups": False} if "use_gloo_process_groups" in accepted else {}
    more |= groups.arguments
    field = {"overlap_param_gather"} & _fields(OptimizerConfig)  # in some releases before core_v0.14 only of DDP
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            bf16=chunks[0].config.bf16,
            params_dtype=chunks[0].config.params_dtype,
            **optimizer_fields(config),
            use_distributed_optimizer=config.distributed_optimizer != "off",
            **dict.fromkeys(field, config.distributed_optimizer == "overlap"),
        ),
        chunks,
        **more,
    )
    vectors = any(
        parameter.dim() == 1 and parameter.requires_grad for chunk in chunks for parameter in chunk.parameters()
    )
    # Without it norms and biases would decay unnoticed: a release that renames the key must be an error here.
    if vectors and not any("wd_mult" in group for group in optimizer.param_groups):
        raise UnknownNameError("upstream's optimizer has no group with wd_mult, by which norms and biases do not decay")
    return optimizer


def build_schedule(config: CellConfig, optimizer: Any) -> OptimizerParamScheduler:
    """Build Megatron's schedule of the learning rate and the decay, which gives the optimizer those of step 0.

    As megatron.training.training.get_optimizer_param_scheduler does. It counts samples: `step(train.global_batch)`
    follows every update.
    """
    train, decay = config.train, weight_decay(config)
    samples = (train.lr_decay_iters or train.steps) * train.global_batch
    warm = train.lr_warmup_iters * train.global_batch
    return OptimizerParamScheduler(
        optimizer,
        init_lr=train.lr_warmup_init,
        max_lr=train.lr,
        min_lr=train.min_lr,
        lr_warmup_steps=warm if train.lr_warmup_fraction is None else train.lr_warmup_fraction * samples,
        lr_decay_steps=samples,
        lr_decay_style=train.lr_decay_style,
        start_wd=decay if train.start_weight_decay is None else train.start_weight_decay,
        end_wd=decay if train.end_weight_decay is None else train.end_weight_decay,
        wd_incr_steps=train.steps * train.global_batch,
        wd_incr_style=train.weight_decay_incr_style,
        wsd_decay_steps=train.lr_wsd_decay_iters and train.lr_wsd_decay_iters * train.global_batch,
        lr_wsd_decay_style=train.lr_wsd_decay_style,
    )


def gather_weights(chunks: Sequence[DistributedDataParallel]) -> None:
    """Gather updated weights now that the next forward would gather, as upstream does before it saves. Collective."""
    for chunk in chunks:
        if chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def whole_gradients(chunks: Sequence[DistributedDataParallel]) -> dict[Tensor, Tensor]:
    """Return each parameter's gradient, gathered from the shards; empty when gradients are not sharded.

    After a reduction, a rank's bucket holds reduced gradients in the rank's own shard, and local gradients elsewhere.
    Collective over dp x cp; the buckets, which the optimizer reads, are not changed.
    """
    gradients: dict[Tensor, Tensor] = {}
    for chunk in chunks:
        if not chunk.ddp_config.use_distributed_optimizer:
            continue
        # Experts have buckets of their own, sharded over fewer replicas.
        for group in (*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups):
            for bucket in group.buckets:
                whole = _gathered(bucket.grad_data, group.intra_distributed_optimizer_instance_group)
                for parameter in bucket.params_list:
                    start, end = bucket.param_to_index[parameter]
                    gradients[parameter] = whole[start:end].view(parameter.shape)
    return gradients


def _gathered(data: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the concatenated shards; rank n of the group owns shard n of `data`."""
    shards = [torch.empty_like(shard) for shard in data.chunk(group.size())]
    dist.all_gather(shards, data.chunk(group.size())[group.rank()].contiguous(), group=group)
    return torch.cat(shards)
