"""Arguments of upstream's script that a matrix cannot pass on, and what to write instead.

Evidence, plan and control are computed from the matrix, so what they depend on must be there. Names have underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from harness.core.cell.arguments import OF_OPTIMIZER, PASSED_ON

_ZERO = "a comparison with a control needs it to be 0"
_DATA = "the harness writes the documents and the tokenizer that upstream reads"
_CONSTANT = "it is constant in every trainer, so that steps are comparable"
_STATE = "the harness cannot read gradients and optimizer state in this form"
_DENSE = "trainer bridge trains dense models here; trainer megatron and trainer harness have model.moe and model.mtp"
_RECURRENT = "recurrent layers have the sizes of attention"
_UPDATES = "the control's optimizer has one constant learning rate for all weights, and no loss scale"
_FILES = "a cell neither reads nor writes files outside its run directory"
_TRAINED = "the harness compares the gradients of all weights"
_EVALUATED = "an evaluation has the documents of one step, every train.eval_interval steps and at the end"
_HEADS = "heads have model.hidden / model.heads elements in cell and control: set these under model:"
_EPSILON = "norms of the harness's models have the epsilon 1e-5"
_NORMS = "norms of the harness's models do not add 1 to their weights"
_ROTARY = "rotary positions of the harness's models are not scaled, and rotate whole heads in every layer: leave it out"
_STAGES = "the layers of a stage follow from pp and vpp, which split them evenly, or from `|` in model.pattern"
_ORDER = "the harness's plan has the order of ranks tp-cp-ep-dp-pp, upstream's default: leave it out"
_AXES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "num_layers_per_virtual_pipeline_stage": "vpp",
    "num_virtual_stages_per_pipeline_rank": "vpp",
    "sequence_parallel": "sp",
    "micro_batch_size": "micro_batch_size",
    "bf16": "dtype",
    "fp16": "dtype",
    "fp8_format": "dtype",
    "fp4_format": "dtype",
    "transformer_impl": "attention",
    "attention_backend": "attention",
    "calculate_per_token_loss": "calculate_per_token_loss",
    "ddp_average_in_collective": "average_in_collective",
    "num_layers": "model.layers",
    "hidden_size": "model.hidden",
    "ffn_hidden_size": "model.ffn",
    "num_attention_heads": "model.heads",
    "num_query_groups": "model.kv_heads",
    "group_query_attention": "model.kv_heads",
    "vocab_size": "model.vocab",
    "rotary_base": "model.rope_base",
    "window_size": "model.window",
    "window_attn_skip_freq": "model.window_skip",
    "qk_layernorm": "model.qk_layernorm",
    "untie_embeddings_and_output_weights": "model.tied",
    "num_experts": "model.moe.experts",
    "moe_router_topk": "model.moe.topk",
    "moe_ffn_hidden_size": "model.moe.ffn",
    "moe_router_load_balancing_type": "model.moe.aux_loss",
    "moe_aux_loss_coeff": "model.moe.aux_loss_coeff",
    "moe_token_dispatcher_type": "model.moe.dispatcher",
    "moe_z_loss_coeff": "model.moe.z_loss_coeff",
    "moe_router_score_function": "model.moe.score_function",
    "moe_router_enable_expert_bias": "model.moe.expert_bias",
    "moe_router_bias_update_rate": "model.moe.bias_rate",
    "moe_shared_expert_intermediate_size": "model.moe.shared_ffn",
    "moe_shared_expert_gate": "model.moe.shared_gate",
    "moe_expert_capacity_factor": "model.moe.capacity_factor",
    "moe_token_drop_policy": "model.moe.drop_policy",
    "moe_pad_expert_input_to_capacity": "model.moe.pad_to_capacity",
    "expert_tensor_parallel_size": "etp",
    "mtp_num_layers": "model.mtp.layers",
    "mtp_loss_scaling_factor": "model.mtp.loss_factor",
    "hybrid_layer_pattern": "model.pattern",
    "hybrid_override_pattern": "model.pattern",
    "global_batch_size": "train.global_batch",
    "train_iters": "train.steps",
    "train_samples": "train.steps",
    "seq_length": "train.seq_length",
    "max_position_embeddings": "train.seq_length",
    "lr": "train.lr",
    "min_lr": "train.lr",
    "use_distributed_optimizer": "distributed_optimizer",
    "seed": "train.seed",
    "eval_interval": "train.eval_interval",
}
_REASONS = {
    "hidden_dropout": _ZERO,
    "attention_dropout": _ZERO,
    "sft": "the axis `packing` sets it",
    "use_varlen_dataset": "the axis `packing` sets it",
    "eod_mask_loss": "the axis `packing` sets it",
    "dataloader_inter_document_masking": "the axis `packing` sets it",
    "position_embedding_type": "the harness's models have rotary embeddings",
    "normalization": "the harness's models have RMSNorm",
    **dict.fromkeys(("swiglu", "squared_relu", "quick_geglu", "openai_gelu"), "the harness's models have SwiGLU"),
    "disable_bias_linear": "the harness's models have no biases",
    "add_qkv_bias": "the harness's models have no biases",
    "kv_channels": _HEADS,
    "norm_epsilon": _EPSILON,
    "layernorm_epsilon": _EPSILON,
    "apply_layernorm_1p": _NORMS,
    "layernorm_zero_centered_gamma": _NORMS,
    "rotary_percent": _ROTARY,
    "rotary_interleaved": _ROTARY,
    "use_rope_scaling": _ROTARY,
    "rope_scaling": _ROTARY,
    "rope_scaling_factor": _ROTARY,
    "rotary_seq_len_interpolation_factor": _ROTARY,
    "seq_len_interpolation_factor": _ROTARY,
    "no_rope_freq": _ROTARY,
    "decoder_first_pipeline_num_layers": _STAGES,
    "decoder_last_pipeline_num_layers": _STAGES,
    "num_layers_in_first_pipeline_stage": _STAGES,
    "num_layers_in_last_pipeline_stage": _STAGES,
    "pipeline_model_parallel_layout": _STAGES,
    "account_for_embedding_in_pipeline_split": _STAGES,
    "account_for_loss_in_pipeline_split": _STAGES,
    "use_tp_pp_dp_mapping": _ORDER,
    "make_vocab_size_divisible_by": "the vocabulary is not padded, so that every layout has the same one",
    "spec": "the axes attention and model.pattern decide the layers",
    "optimizer": "the harness's own loop, which computes the control, has Adam",
    "start_weight_decay": _CONSTANT,
    "end_weight_decay": _CONSTANT,
    "weight_decay_incr_style": _CONSTANT,
    "use_precision_aware_optimizer": _STATE,
    "optimizer_cpu_offload": _STATE,
    "use_torch_fsdp2": _STATE,
    "use_megatron_fsdp": _STATE,
    "full_validation": _EVALUATED,
    "multiple_validation_sets": _EVALUATED,
    "skip_train": _EVALUATED,
    "start_eval_at_iter": _EVALUATED,
    "freeze_all_layers": _TRAINED,
    "rampup_batch_size": "every step has the same number of documents",
    "distributed_backend": "the device sets it",
    "num_workers": "ranks are forked processes, which load their data themselves",
    "split": _DATA,
    "data_path": _DATA,
    "train_data_path": _DATA,
    "valid_data_path": _DATA,
    "test_data_path": _DATA,
    "data_args_path": _DATA,
    "per_split_data_args_path": _DATA,
    "data_cache_path": _DATA,
    "mock_data": _DATA,
    "dataloader_type": "the packing plan has the order of documents, that of --dataloader-type single",
    "vocab_file": _DATA,
    "merge_file": _DATA,
    "save": _FILES,
    "save_interval": _FILES,
    "load": _FILES,
    "pretrained_checkpoint": _FILES,
    "tensorboard_dir": _FILES,
    "yaml_cfg": _FILES,
    "profile": "the harness measures steps itself",
    "exit_interval": "every cell runs train.steps steps",
    "iterations_to_skip": "every cell runs train.steps steps",
    "reset_position_ids": "upstream's packed data set refuses it",
    "reset_attention_mask": "upstream's packed data set refuses it",
    **dict.fromkeys(("decoupled_lr", "decoupled_min_lr", "loss_scale"), _UPDATES),
    "exit_duration_in_mins": "every cell runs train.steps steps",
}
_PREFIXES = {
    "eval_": _EVALUATED,
    "lr_": _CONSTANT,
    "tokenizer_": _DATA,
    "sft_": _DATA,
    "wandb_": _FILES,
    "tensorboard_": _FILES,
    "one_logger_": _FILES,
    "linear_": _RECURRENT,
    "mamba_": _RECURRENT,
}


# Sections of Megatron-Bridge's ConfigContainer that the harness fills in as a whole.
_SECTIONS = {
    "dataset": _DATA,
    "tokenizer": _DATA,
    "checkpoint": _FILES,
    "validation": _EVALUATED,
    "scheduler": _CONSTANT,
    "rng": "set train.seed under train:",
    "dist": "the device sets it",
    "mixed_precision": "set it by the axis dtype",
    "peft": _TRAINED,
    "profiling": "the harness measures steps itself",
}
_FIELDS = {
    "ddp.average_in_collective": "set it by the axis average_in_collective",
    "ddp.use_megatron_fsdp": _STATE,
    "ddp.use_distributed_optimizer": "set it by the axis distributed_optimizer",
    "logger.log_interval": "every step is compared",
    "logger.skip_train_metrics_log": "every step is compared",
    "model.params_dtype": "set it by the axis dtype",
    "model.virtual_pipeline_model_parallel_size": "set it by the axis vpp",
    "model.share_embeddings_and_output_weights": "set model.tied under model:",
    "model.gated_linear_unit": "the harness's models have SwiGLU",
    "model.add_bias_linear": "the harness's models have no biases",
    "model.num_moe_experts": _DENSE,
    "model.mtp_num_layers": _DENSE,
    "model.transformer_layer_spec": "set it by the axis attention",
    "optimizer.params_dtype": "set it by the axis dtype",
    "train.skip_train": _EVALUATED,
}


# Fields of those sections that say how a checkpoint is saved and loaded, not where and when.
_HOW_TO_SAVE = (
    "checkpoint.async_save",
    "checkpoint.dist_ckpt_optim_fully_reshardable",
    "checkpoint.fully_parallel_load",
    "checkpoint.fully_parallel_save",
)


# Names among them that define the model or its training -> the value that the harness's models have, as a profile may
# say it; None: no profile may have the name.
_HAVE = {
    "swiglu": "true",
    "gated_linear_unit": "true",
    "disable_bias_linear": "true",
    "add_bias_linear": "false",
    "add_qkv_bias": "false",
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "optimizer": "adam",
    "norm_epsilon": "1e-5",
    "layernorm_epsilon": "1e-5",
    "rotary_percent": "1",
    **{name: "false" for name, reason in _REASONS.items() if reason in (_NORMS, _ORDER)},
    **dict.fromkeys(("squared_relu", "quick_geglu", "openai_gelu"), "false"),
    **dict.fromkeys(("rotary_interleaved", "use_rope_scaling", "rope_scaling"), "false"),
    **dict.fromkeys(("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"), "false"),
}
_HAVE_NOT = [
    name
    for name, reason in _REASONS.items()
    if reason in (_ROTARY, _STAGES, _HEADS, _UPDATES, _TRAINED) and name not in _HAVE
]
_SHRUNK = ("window_size", "hybrid_layer_pattern", "hybrid_override_pattern")  # texts that are sizes
_NOT_COMPARED = ("moe_token_dispatcher_type",)


def missing_in_models(name: str, words: tuple[str, ...], among: Mapping[str, Any], models: Iterable[Any]) -> str:
    """Why an owned argument of a profile must not be left out: no model of the matrix has it. Empty if one has.

    Sizes may differ, since the matrix's model is a small one. `among`: all arguments of the profile; `models`: the
    ModelConfigs of the matrix.
    """
    section, _, field = name.rpartition(".")
    if section not in ("", "model", "optimizer"):
        return ""
    value = " ".join(words) or "true"
    if field == "kv_channels" and _divided(among, section) == value:
        return ""
    if field in _HAVE_NOT or (field in _HAVE and not _same(value, _HAVE[field])):
        return owner_of(name) or ""
    key = _AXES.get(field, "")
    if not key.startswith("model.") or field in _NOT_COMPARED:
        return ""
    wanted = value if field != "untie_embeddings_and_output_weights" else "false"
    if any(_has(_read(model, key), wanted, field) for model in models):
        return ""
    return f"no model of this matrix has it: set {key} under model:, or leave it out of the profile"


def _divided(among: Mapping[str, Any], section: str) -> str:
    """The size of a head that the other arguments of a profile make, as text."""
    prefix = f"{section}." if section else ""
    sizes = [among.get(f"{prefix}{name}") for name in ("hidden_size", "num_attention_heads")]
    hidden, heads = (int(words[0]) if words and words[0].isdecimal() else 0 for words in sizes)
    return str(hidden // heads) if heads else ""


def _read(model: Any, key: str) -> Any:
    """The value of a key such as model.moe.topk; None where the model does not have the part."""
    *parts, name = key.split(".")[1:]
    owner = attrgetter(".".join(parts))(model) if parts else model
    return None if owner is None else getattr(owner, name)


def _has(have: Any, wanted: str, field: str) -> bool:
    """Whether a model with the value `have` is one with the `wanted` one, but for its size."""
    if isinstance(have, bool):
        return wanted == str(have).lower()
    if field not in _SHRUNK and isinstance(have, str):
        return wanted == have
    return bool(have) or _same(wanted, "0")


def _same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def owner_of(name: str) -> str | None:
    """Why a matrix cannot pass on an argument, and what to do instead; None if it can."""
    section, _, field = name.rpartition(".")
    if section:
        return _owner_of_field(section.partition(".")[0], field, name)
    if name in PASSED_ON:
        return None
    if name in _AXES:
        axis = _AXES[name]
        return f"set {axis} under {axis.partition('.')[0]}:" if "." in axis else f"set it by the axis {axis}"
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    return _REASONS.get(name) or _PREFIXES.get(prefix)


def _owner_of_field(section: str, field: str, name: str) -> str | None:
    """The same for a field of Megatron-Bridge's ConfigContainer; most have the names of Megatron-LM's arguments."""
    if name in _HOW_TO_SAVE:
        return None
    if section == "optimizer" and field in OF_OPTIMIZER:
        return f"the control needs it too: write {field.replace('_', '-')}"
    return _FIELDS.get(name) or _SECTIONS.get(section) or owner_of(field)
