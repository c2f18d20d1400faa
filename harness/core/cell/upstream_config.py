"""The model and the optimizer that a cell asks for, as fields of upstream's configurations, and how others may differ.

Every trainer and data path builds this one, or the cell is ERROR (judge/built_check.py). Fields that are not named here
have upstream's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from harness.core.cell.config import CellConfig
from harness.core.cell.model import ACTIVATIONS, ModelConfig
from harness.core.setting import upstream_of
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.experts.layers import listed as layers_listed
from harness.features.hybrid.pattern import CONVOLUTION, EXPANSION, RECURRENT, STATE_SIZE
from harness.features.vision.config import (
    CHANNELS,
    IMAGE,
    MERGE,
    PATCH,
    POSITIONS,
    TEMPORAL_PATCH,
    VIDEO,
    VISION_START,
    VisionConfig,
)

_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}
_OF_TOWER = 'gelu(approximate: "tanh")'


def asked(config: CellConfig) -> dict[str, dict[str, str]]:
    """Part (BuiltSeen.of) -> field -> value as text, in the form of `BuiltSeen.values`."""
    # Qwen3-VL scatters embeddings itself, after it has put the images in.
    scattered = {"scatter_embedding_sequence_parallel": False} if config.model.vision else {}
    tower = {}
    if config.model.vision:
        tower = {"tower": _texts(_tower_fields(config.model, config.model.vision)) | {"activation_func": _OF_TOWER}}
    precision = {"params_dtype": _DTYPES[config.dtype], "bf16": json.dumps(config.dtype == "bf16")}
    return {
        "model": _texts(model_fields(config))
        | precision
        | {"activation_func": ACTIVATIONS[config.model.activation].function},
        "constructor": _texts(constructor_arguments(config.model) | scattered),
        "ddp": _texts({"grad_reduce_in_fp32": True}),
        "optimizer": _texts({"optimizer": "adam", **optimizer_fields(config)}) | precision,
        **tower,
    }


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in values.items()}


def model_fields(config: CellConfig) -> dict[str, Any]:
    """Return fields of TransformerConfig that say what is computed; its dtypes and functions are torch's."""
    model = config.model
    fields = {
        **upstream_of(config.layout),
        "mtp_standalone": model.mtp is not None and config.layout.prediction_stage != config.layout.pp - 1,
        **upstream_of(model),
        **upstream_of(config.options),
        "kv_channels": model.head,
        "window_size": None if model.window is None else (model.window, 0),
        "no_rope_freq": model.without_rope,
        "add_qkv_bias": model.qkv_bias or model.biases,  # validate_args makes it so, too
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "gated_linear_unit": model.gated,
    }
    if model.hybrid:
        fields |= recurrent_fields(model)
    if model.vision:
        fields |= _vision_fields(model, model.vision)
    if model.moe:
        fields |= _expert_fields(model.moe)
    if model.mtp:
        fields |= upstream_of(model.mtp)
    return fields | (_latent_fields(model, model.mla) if model.mla else {})


def recurrent_fields(model: ModelConfig) -> dict[str, Any]:
    """Sizes of recurrent layers, if there are any. They have the heads of attention: values all, keys kv_heads."""
    if not set(RECURRENT) & set(model.pattern):
        return {}
    size = model.head
    return {
        "linear_conv_kernel_dim": CONVOLUTION,
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
        "linear_num_key_heads": model.kv_heads,
        "linear_num_value_heads": model.heads,
        "mamba_state_dim": STATE_SIZE,
        "mamba_head_dim": EXPANSION * size,
        "mamba_num_heads": model.heads,
        "mamba_num_groups": model.kv_heads,
    }


def _vision_fields(model: ModelConfig, vision: VisionConfig) -> dict[str, Any]:
    """Return fields that Qwen3-VL's configuration of the language model has besides; some become arguments of
    constructors.
    """
    return {
        **upstream_of(vision),
        "mrope_section": list(vision.sections),
        "vocab_size": model.vocab,
        "rotary_base": model.rope_base,
        "share_embeddings_and_output_weights": model.tied,
        "spatial_merge_size": MERGE,
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION_START,
        "deepstack_visual_indexes": list(range(vision.deepstack)),
    }


def _tower_fields(model: ModelConfig, vision: VisionConfig) -> dict[str, Any]:
    """Return fields of the image tower's configuration; of those that the cell does not choose, as Qwen3-VL has
    them.
    """
    return {
        "num_layers": vision.layers,
        "hidden_size": vision.hidden,
        "num_attention_heads": vision.heads,
        "num_query_groups": vision.heads,
        "kv_channels": vision.hidden // vision.heads,
        "ffn_hidden_size": vision.ffn,
        "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL_PATCH,
        "in_channels": CHANNELS,
        "spatial_merge_size": MERGE,
        "num_position_embeddings": POSITIONS,
        "out_hidden_size": model.hidden,
        "deepstack_visual_indexes": list(range(vision.deepstack)),
        "normalization": "LayerNorm",
        "layernorm_epsilon": 1e-6,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "gated_linear_unit": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "apply_rotary_pos_emb_in_fp32": True,
        # Upstream sets these too, for nothing: the tower has no stages, and its positions are rows and columns.
        "account_for_embedding_in_pipeline_split": None,
        "account_for_loss_in_pipeline_split": None,
        "mrope_section": [24, 20, 20],
    }


def _expert_fields(moe: MoeConfig) -> dict[str, Any]:
    return {
        **upstream_of(moe),
        "moe_aux_loss_coeff": moe.aux_loss_coeff if moe.balanced else 0.0,
        "moe_z_loss_coeff": moe.z_loss_coeff or None,  # upstream divides by it in its log
        "moe_router_pre_softmax": moe.pre_softmax,
        "moe_layer_freq": layers_listed(moe.layer_freq) or int(moe.layer_freq),
    }


def _latent_fields(model: ModelConfig, mla: MlaConfig) -> dict[str, Any]:
    return {
        **upstream_of(mla),
        "multi_latent_attention": True,
        "rotary_base": model.rope_base,
        "qk_layernorm": mla.normed,
        "num_query_groups": model.heads,
    }


def constructor_arguments(model: ModelConfig) -> dict[str, Any]:
    """Arguments of the model's constructor that say what is computed; HybridModel lacks some, which have defaults."""
    scaling = {"rope_scaling": True, "rope_scaling_factor": model.rope_scaling_factor} if model.rope_scaling else {}
    interpolation = model.rotary_interpolation
    return {
        "vocab_size": model.vocab,
        "position_embedding_type": "mrope" if model.vision else model.position_embedding,
        "rotary_base": model.rope_base,
        "share_embeddings_and_output_weights": model.tied,
        **({"rotary_percent": model.rotary_percent} if model.rotary_percent < 1 else {}),
        **({} if interpolation is None else {"seq_len_interpolation_factor": interpolation}),
        **scaling,
    }


def weight_decay(config: CellConfig) -> float:
    """Of parameters with several dimensions; biases and norms do not decay. Without `args` upstream's default."""
    return config.args.numbers().get("weight_decay", 0.01)


def optimizer_fields(config: CellConfig) -> dict[str, Any]:
    """Return fields of OptimizerConfig: Adam's; gradients are clipped only if the cell asks for it."""
    return {"lr": config.train.lr, "min_lr": config.train.min_lr, "clip_grad": 0.0, **config.args.numbers()}


# Fields that say which stage holds which layers. The control has one stage; of the cell itself they are compared.
OF_STAGES = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
    "mtp_standalone",
)


# The fields that may differ between a cell and its control. Whatever is not in this table makes another model or
# another training of it, so that nothing can be compared. Why a difference is harmless -> fields of TransformerConfig,
# OptimizerConfig and DistributedDataParallelConfig, and arguments of the models' constructors, that have it.
HARMLESS: dict[str, tuple[str, ...]] = {
    "the axes of the layout set it": (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "sequence_parallel",
        "hierarchical_context_parallel_sizes",
        "tensor_parallel_num_weight_shards",
        "expert_tensor_parallel_num_weight_shards",
    ),
    "an axis or a packing option sets it, and the control is chosen for it": (
        "attention_backend",
        "calculate_per_token_loss",
        "average_in_collective",
        "hybrid_layer_pattern",  # cut into the stages of the layout
        "parallel_output",
    ),
    "it says how a data path makes rows, which ranks compare with the packing plan": (
        "video_token_id",  # it also places positions and the features of image tokens
        "vision_start_token_id",
        "sequence_packing_scheduler",
        "max_seqlen_per_dp_cp_rank",
        "create_attention_mask_in_dataloader",
    ),
    "it says what backward computes again, or keeps elsewhere meanwhile": (
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "recompute_modules",
        "distribute_saved_activations",
        "moe_layer_recompute",
        "num_microbatches_with_partial_activation_checkpoints",
        "mhc_recompute_layer_num",
        "cpu_offloading",
        "cpu_offloading_num_layers",
        "_cpu_offloading_context",
        "cpu_offloading_activations",
        "cpu_offloading_weights",
        "cpu_offloading_double_buffering",
        "cpu_offloading_retain_pinned_cpu_buffers",
        "fine_grained_activation_offloading",
        "offload_modules",
        "min_offloaded_tensor_size",
        "delay_offload_until_cuda_graph",
        "delta_offload_bytes_across_pp_ranks",
        "activation_offload_fraction",
        "fine_grained_offloading_max_inflight_offloads",
        "moe_paged_stash",
        "moe_paged_stash_page_size",
        "moe_paged_stash_buffer_size_factor_cuda",
        "moe_paged_stash_buffer_size_factor_cpu",
    ),
    "it chooses kernels of the same computation": (
        "transformer_impl",
        "gradient_accumulation_fusion",
        "bias_activation_fusion",
        "bias_gelu_fusion",
        "bias_swiglu_fusion",
        "masked_softmax_fusion",
        "persist_layer_norm",
        "memory_efficient_layer_norm",
        "bias_dropout_fusion",
        "apply_rope_fusion",
        "fused_single_qkv_rope",
        "fused_residual_rmsnorm",
        "use_fused_weighted_squared_relu",
        "use_transformer_engine_op_fuser",
        "use_te_activation_func",
        "cross_entropy_fusion_impl",  # the fusion itself rounds gradients to bf16, so that it is compared
        "flash_attention_version",
        "flash_decode",
        "deterministic_mode",
        "mla_down_proj_fusion",
        "apply_dsa_kernel_fusion",
        "moe_permute_fusion",
        "moe_router_fusion",
        "moe_grouped_gemm",
        "moe_use_legacy_grouped_gemm",
        "moe_use_grouped_tensor",
        "use_grouped_gemm_for_dense_mlp",
        "use_grouped_gemm_for_shared_expert",
        "use_mamba_mem_eff_path",
        "gdp_cutedsl_kernel",
        "gdp_num_chunk_states_to_recompute",
        "gradient_reduce_div_fusion",
        "batch_invariant_mode",
        "disable_parameter_transpose_cache",
        "keep_fp8_transpose_cache",
        "mlp_chunks_for_training",
        "moe_permute_fusion_into_hybridep",
        "enable_cuda_graph",
        "external_cuda_graph",
        "cuda_graph_impl",
        "cuda_graph_scope",
        "cuda_graph_modules",
        "cuda_graph_use_single_mempool",
        "cuda_graph_retain_backward_graph",
        "cuda_graph_warmup_steps",
        "inference_cuda_graph_scope",
        "optimizer_cuda_graph",
        "max_vision_cuda_graph_seq_length",
    ),
    "it says how and when ranks exchange the same values": (
        "pipeline_model_parallel_comm_backend",
        "pipeline_dtype",
        "variable_seq_lengths",
        "overlap_p2p_comm",
        "batch_p2p_comm",
        "batch_p2p_sync",
        "use_ring_exchange_p2p",
        "deallocate_pipeline_outputs",
        "defer_embedding_wgrad_compute",
        "wgrad_deferral_limit",
        "overlap_p2p_comm_warmup_flush",
        "microbatch_group_size_per_vp_stage",
        "async_tensor_model_parallel_allreduce",
        "cp_comm_type",
        "tp_comm_overlap",
        "tp_comm_bulk_wgrad",
        "tp_comm_bulk_dgrad",
        "tp_comm_overlap_ag",
        "tp_comm_overlap_rs",
        "tp_comm_overlap_rs_dgrad",
        "tp_comm_split_ag",
        "tp_comm_atomic_ag",
        "tp_comm_split_rs",
        "tp_comm_atomic_rs",
        "tp_comm_overlap_disable_qkv",
        "tp_comm_overlap_disable_fc1",
        "tp_comm_bootstrap_backend",
        "symmetric_ar_type",
        "moe_token_dispatcher_type",
        "moe_enable_deepep",
        "moe_flex_dispatcher_backend",
        "moe_deepep_num_sms",
        "moe_flex_dispatcher_num_sms",
        "moe_hybridep_num_sms",
        "moe_hybridep_num_sms_preprocessing",
        "moe_hybridep_num_blocks_permute",
        "moe_hybridep_num_blocks_unpermute",
        "moe_hybridep_pad_uneven_dispatch_inputs",
        "moe_ncclep_static_shape",
        "moe_ncclep_zero_copy",
        "ep_overlap_early_attn_memory_release",
        "overlap_dispatch_backward_with_experts_wgrad",
        "moe_shared_expert_overlap",
        "overlap_moe_expert_parallel_comm",
        "delay_wgrad_compute",
        "high_priority_a2a_comm_stream",
        "use_distributed_optimizer",
        "num_distributed_optimizer_instances",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "overlap_param_gather_with_optimizer_step",
        "align_param_gather",
        "bucket_size",
        "num_buckets",
        "pad_buckets_for_high_nccl_busbw",
        "nccl_ub",
        "disable_symmetric_registration",
        "clone_scatter_output_in_embedding",
        "vision_dp_when_cp",
    ),
    "the cell's weights replace those that upstream draws": (
        "perform_initialization",
        "use_cpu_initialization",
        "init_model_with_meta_device",
        "init_method",
        "output_layer_init_method",
        "embedding_init_method",
        "init_method_std",
        "embedding_init_method_std",
    ),
    "a training loop sets it, and it computes nothing": (
        "finalize_model_grads_func",
        "grad_scale_func",
        "no_sync_func",
        "grad_sync_func",
        "param_sync_func",
        "timers",
        "barrier_with_L1_time",
        "config_logger_dir",
        "check_for_nan_in_grad",
        "check_for_large_grads",
        "log_num_zeros_in_grad",
        "log_max_attention_logit",
        "moe_per_layer_logging",
        "hetereogenous_dist_checkpoint",
        "max_sequence_length",  # of a check of inference; with learned positions, the rows of their weight
        "language_max_sequence_length",  # the same of Qwen3-VL
        "hf_text_config",
    ),
    "it is a detail of what is off, and the switch itself is compared": (
        "autocast_dtype",  # of enable_autocast
        "actual_vocab_size",  # of layers that route by token ids, moe_n_hash_layers
        "data_parallel_sharding_strategy",
        "outer_dp_sharding_strategy",
        "optimizer_offload_fraction",
        "initial_loss_scale",
        "min_loss_scale",
        "loss_scale_window",
        "hysteresis",
        "suggested_communication_unit_size",
        "fsdp_all_gather_in_start_param_sync",
        "fsdp_db_use_persist_buf_on_alloc_fail",
        "fsdp_double_buffer",
        "fsdp_manual_registration",
        "megatron_fsdp_cuda_graph_mode",
        "megatron_fsdp_enable_fine_grained_param_gather",
        "megatron_fsdp_max_pool_double_buffer",
        "overlap_cpu_optimizer_d2h_h2d",
        "pin_cpu_grads",
        "pin_cpu_params",
        "use_torch_optimizer_for_cpu_offload",
    ),
    "it is of inference": (
        "cache_mla_latents",
        "inference_disable_triton_nvls_kernels",
        "inference_fuse_tp_communication",
        "inference_grouped_gemm_backend",
        "inference_moe_disable_fused_quant_kernels",
        "inference_moe_token_dispatcher_type",
        "inference_sampling_seed",
        "mlp_chunks_for_prefill",
        "moe_pad_experts_for_cuda_graph_inference",
        "nccl_all_reduce_for_prefill",
    ),
    "it chooses the random generator, of which nothing without dropout draws": (
        "use_te_rng_tracker",
        "inference_rng_tracker",
    ),
    "attention is the harness's or Transformer Engine's, which do not read it": (
        "attention_softmax_in_fp32",
        "apply_query_key_layer_scaling",  # and upstream's own multiplies again what it has divided
    ),
    "only the names of layers in a checkpoint and in recurrent layers depend on it": ("is_hybrid_model",),
}
_MAX_NAMED = 4
_HARMLESS = frozenset(chain.from_iterable(HARMLESS.values()))


# Prefix of fields -> the field without which, at its default, none of them is read.
_SWITCHES = {
    "moe_": "num_moe_experts",
    "mtp_": "mtp_num_layers",
    "fp8_": "fp8",
    "fp4_": "fp4",
    "inference_": "inference",  # no field: inference is off in training
    "muon_": "muon",  # no field: `optimizer` is compared
    "megatron_fsdp_": "use_megatron_fsdp",
    "rope_scaling_factor": "rope_scaling",
}


class Difference(NamedTuple):
    field: str
    one: str | None  # value as text; None: upstream's default
    other: str | None


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[Difference]:
    """Return fields with different values that change what is computed, sorted by name."""
    named = sorted((one.keys() | other.keys()) - _HARMLESS)
    found = [Difference(name, one.get(name), other.get(name)) for name in named]
    return [item for item in found if not _same(item.one, item.other) and not unread(item.field, one, other)]


def _same(one: str | None, other: str | None) -> bool:
    """Return whether two values are equal; numbers are, whether they are written as integers or not."""
    if one == other or one is None or other is None:
        return one == other
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def unread(name: str, *sides: Mapping[str, str]) -> bool:
    """Return whether nothing reads a field, since what it is a detail of is off on all sides."""
    switches = [switch for prefix, switch in _SWITCHES.items() if name.startswith(prefix) and name != switch]
    return any(all(side.get(switch) in (None, "null", "false") for side in sides) for switch in switches)


def listed(found: Sequence[Difference], other: str) -> str:
    """Return the first differences as text: "kv_channels 128, control 8"; `other`: what the second value is of."""
    named = [f"{field} {_shown(one)}, {other} {_shown(value)}" for field, one, value in found[:_MAX_NAMED]]
    more = f"; {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return "; ".join(named) + more


def _shown(value: str | None) -> str:
    return "upstream's default" if value is None else value
