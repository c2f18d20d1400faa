"""The model of a cell: megatron-core's GPTModel, DDP and optimizer, built for the cell's layout."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import package_info, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.core.cell.axes import upstream_names
from harness.core.cell.axis_values import EXPLICIT
from harness.core.cell.config import CellConfig
from harness.core.cell.upstream_config import constructor_arguments, model_fields
from harness.core.outcomes import STACK_UNDER_TEST, Missing, Rejection
from harness.features.adapters.node_adapters import adapted
from harness.features.attention.config import VANILLA
from harness.features.attention.node_kinds import attention_fields
from harness.features.hybrid.node_model import build_hybrid, stack_spec
from harness.features.optimizer.node_distributed import connect_schedule, ddp_config
from harness.features.recompute.node_recompute import recompute_fields
from harness.features.vision.node_model import build_vision_model
from harness.probe.model.builders import MODELS
from harness.probe.model.groups import GLOBAL, Groups, explicit_groups
from harness.probe.model.norm import norm_of
from harness.probe.model.parts import (
    activation_function,
    config_class,
    dense,
    layer_numbers,
    layer_spec,
    layer_specs,
    mtp_arguments,
)
from harness.runtime.device.placement import Device
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_lookup import lacking, takes

_OFF = (None, False, VANILLA)
_UNNEEDED = "embedding_init_method"  # before core_v0.14 embeddings take init_method
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def _undrawn(weight: torch.Tensor) -> torch.Tensor:
    """Leave weights uninitialised, as an init_method of upstream's configuration."""
    return weight


_FIXED: dict[str, Any] = {
    "use_cpu_initialization": True,
    # `initialize` sets every weight. perform_initialization=False would also skip upstream's initialisation, but older
    # releases then do not set the tensor-parallel attributes of weights.
    **dict.fromkeys(("init_method", "output_layer_init_method", "embedding_init_method"), _undrawn),
    # Fusions need extensions for GPUs or torch's JIT, and round differently; unfused code computes the same.
    "gradient_accumulation_fusion": False,
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "persist_layer_norm": False,
}


def initialize_parallel(config: CellConfig, device: Device) -> Groups:
    """Create Megatron's process groups and random state for the layout; torch.distributed must be initialised."""
    layout = config.layout
    optional: dict[str, Any] = {
        # As for the world group: a hang must end at the cell's deadline, not by an earlier time-out.
        "distributed_timeout_minutes": math.ceil(timeout_of(config).total_seconds() / 60),
        # Copies of the groups over gloo are for checkpoints of a distributed optimizer, which this loop does not write.
        "create_gloo_process_groups": False,
        "expert_tensor_parallel_size": layout.expert_tp,
        **_embedding_ranks(config),
        **({"order": "tp-cp-ep-pp-dp"} if layout.pp_before_dp else {}),
    }
    initialize = partial(
        parallel_state.initialize_model_parallel,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        **{name: value for name, value in optional.items() if takes(parallel_state.initialize_model_parallel, name)},
    )
    groups = GLOBAL
    if config.groups == EXPLICIT:
        groups = explicit_groups(initialize)
    else:
        initialize()
    # Upstream's layers ask for its named random states even when nothing is drawn from them.
    tensor_parallel.model_parallel_cuda_manual_seed(config.train.seed)
    return groups


def _embedding_ranks(config: CellConfig) -> dict[str, Any]:
    """Return which ranks of a pipeline have a copy of the embedding, if its prediction layers are not on the last one.

    As pretrain_gpt.get_embedding_ranks; upstream's default is the first and the last rank, which fits all other cells.
    """
    stage = config.layout.prediction_stage
    if config.model.mtp is None or stage == config.layout.pp - 1:
        return {}
    holders = {0, stage, *([config.layout.pp - 1] if config.model.tied else [])}
    return {"get_embedding_ranks": lambda ranks: [ranks[holder] for holder in sorted(holders)]}


def timeout_of(config: CellConfig) -> timedelta:
    """Return the time-out of collectives: longer than the deadline, so that a hang ends with the dumps at the
    deadline.
    """
    return timedelta(seconds=config.deadline_s + 60)


def first_collectives(device: Device) -> list[str]:
    """Run one all_reduce on the world and on every parallel group, so that they are connected before upstream runs.

    NCCL connects a group at its first collective: an error there comes from the network, a GPU or the driver, and must
    not look like a failure of the data path or the model. Returns the groups' names, in the same order on all ranks.
    RuntimeError when a sum is wrong.
    """
    groups: dict[str, Any] = {"WORLD": None}
    for name, group in sorted(vars(parallel_state).items()):
        if isinstance(group, dist.ProcessGroup) and group.size() > 1 and group not in groups.values():
            groups[name.strip("_")] = group
    unit = torch.ones(1, device=device.torch_device)
    for name, group in groups.items():
        total = unit.clone()
        dist.all_reduce(total, group=group)
        if int(total) != dist.get_world_size(group):  # int() also synchronises with the GPU
            size = dist.get_world_size(group)
            raise RuntimeError(f"the first all_reduce of ones in {name} gave {float(total):g} instead of {size}")
    return list(groups)


def upstream_fields(config: CellConfig) -> dict[str, Any]:
    """Return all fields of upstream's configuration that the cell sets: what it asks for, and how it is computed."""
    layout, dtype = config.layout, DTYPES[config.dtype]
    dispatcher = config.model.moe.dispatcher if config.model.moe else "alltoall"
    return {
        **model_fields(config),
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "expert_tensor_parallel_size": layout.expert_tp if config.model.moe else None,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": config.dtype == "bf16",
        **_FIXED,
        # Row lengths differ between micro-batches, so stages must exchange shapes. The dispatcher allgather refuses
        # that; rules ensure that its rows all have the same length.
        "variable_seq_lengths": dispatcher != "allgather",
        # Upstream refuses its default dispatcher with variable lengths, even for a dense model.
        "moe_token_dispatcher_type": dispatcher,
        # Megatron's default for interleaving (arguments.py). With pp 2, each stage is both the previous and the next of
        # the other; backends that match messages by order would mix up batched ones.
        "overlap_p2p_comm": layout.vpp > 1,
        "batch_p2p_comm": layout.vpp == 1,
        "activation_func": activation_function(config),
        **attention_fields(config.attention),
        **recompute_fields(config.recompute),
        **({"language_max_sequence_length": config.train.seq_length} if config.model.vision else {}),
    }


def unsupported_fields(config: CellConfig) -> Rejection | Missing | None:
    """Return why this release's configuration cannot express the cell; None when it can.

    A missing field does not matter if the cell leaves it off.
    """
    upstream = config_class(config)
    field_names = {field.name for field in dataclasses.fields(upstream)}
    absent = [
        name
        for name, value in upstream_fields(config).items()
        # A field that this release lacks does no harm while the cell leaves it off.
        if name not in {*field_names, _UNNEEDED} and value not in _OFF
    ]
    if not absent:
        return None
    keys = upstream_names()
    named = ", ".join(f"{name} ({keys[name]})" if name in keys else name for name in absent)
    reason = f"megatron-core {package_info.__version__}: {upstream.__name__} has no field {named}"
    if all(name in keys for name in absent):
        return lacking("megatron.core", Rejection(rule="stack.field", reason=reason, source=STACK_UNDER_TEST))
    return Missing(reason=f"{reason}, which the probe needs; use a supported release")


def transformer_config(config: CellConfig) -> TransformerConfig:
    """Return upstream's configuration, without fields that it lacks, which are off (`unsupported_fields` has
    checked).
    """
    upstream = config_class(config)
    field_names = {field.name for field in dataclasses.fields(upstream)}
    return upstream(**{name: value for name, value in upstream_fields(config).items() if name in field_names})


def build_chunks(
    config: CellConfig, upstream: TransformerConfig, device: Device, groups: Groups = GLOBAL
) -> list[DistributedDataParallel]:
    """Build the model chunks of this rank's stage, each wrapped in Megatron's DDP."""
    chunks = []
    for index in range(config.layout.vpp):
        stage = index if config.layout.vpp > 1 else None
        virtual = {"ignore_virtual": False, "vp_stage": stage} if stage is not None else {}
        arguments: dict[str, Any] = {
            **constructor_arguments(config.model),
            "max_sequence_length": config.train.seq_length,
            "pre_process": parallel_state.is_pipeline_first_stage(**virtual),
            "post_process": parallel_state.is_pipeline_last_stage(**virtual),
            "parallel_output": not config.model.gathered_logits,
            **({"vp_stage": stage} if stage is not None else {}),
            **groups.arguments,
        }
        chunk = adapted(config.model.peft, _model(config, upstream, stage, arguments).to(device.torch_device))
        # As in megatron.training.get_model: inputs are cast to bf16, outputs of the last stage back to fp32.
        wrapped = Float16Module(upstream, chunk) if upstream.bf16 else chunk
        chunks.append(DistributedDataParallel(upstream, ddp_config(config), wrapped, **groups.arguments))
    # The schedule calls it after the last backward: it reduces gradients over dp, of embeddings over pp and of norms
    # over tp.
    upstream.finalize_model_grads_func = finalize_model_grads
    connect_schedule(upstream, chunks)
    return chunks


def _model(config: CellConfig, upstream: TransformerConfig, stage: int | None, arguments: dict[str, Any]) -> Any:
    """Build a chunk of GPTModel, HybridModel or Qwen3VLModel; `stage`: its virtual stage, None without interleaving."""
    if config.model.builder:
        return MODELS[config.model.builder](config, upstream, stage, arguments)
    if config.model.hybrid:
        return build_hybrid(config, upstream, hybrid_spec(config), **arguments)
    virtual = {} if stage is None else {"vp_stage": stage}  # which releases before core_v0.14 do not take
    count = get_num_layers_to_build(upstream, **virtual)
    specs = layer_specs(config)
    # A stage that upstream gives a layer beyond the model's is built all the same: checks say what is wrong.
    own = [specs[min(number, config.model.layers - 1)] for number in layer_numbers(upstream, count, **virtual)]
    spec = TransformerBlockSubmodules(layer_specs=own, layer_norm=norm_of(config))
    if config.model.vision:
        return build_vision_model(config, upstream, spec, arguments)
    # Upstream builds prediction layers as the last layer of the model.
    one = TransformerBlockSubmodules(layer_specs=specs[-1:], layer_norm=norm_of(config))
    return GPTModel(upstream, spec, **arguments, **mtp_arguments(config, upstream, one, stage))


def hybrid_spec(config: CellConfig) -> Any:
    """Return the spec of HybridModel's layers."""
    # A hybrid pattern has letters for dense and for expert layers, so it needs the specs of both.
    parts = (layer_spec(dense(config)).submodules, layer_spec(config).submodules)
    return stack_spec(*parts, norm_of(config), config.model.pattern)


def unwrap(chunk: Any) -> GPTModel:
    """Return the model (GPTModel, HybridModel, Qwen3VLModel) inside DDP and the precision wrapper."""
    # DDP and Float16Module nest in an order that depends on precision.
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def expert_rank() -> int:
    """Return this rank's expert-parallel rank."""
    return int(parallel_state.get_expert_model_parallel_rank())


def shard_ranks(context: RankContext) -> dict[str, Any]:
    """Return the keyword arguments of `named_parameters` and `initialize` that say which shards this rank holds."""
    layout, place = context.config.layout, context.place
    shard = layout.expert_shard(place)
    split = None if shard is None else (shard, layout.expert_tp)
    return {"tp_rank": place.tp, "tp_size": layout.tp, "ep_rank": expert_rank(), "expert_split": split}
