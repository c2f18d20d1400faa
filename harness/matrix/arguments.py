"""`args` and `profiles` of a matrix file, axes like `args.clip-grad`, and the arguments that a matrix cannot pass on.

Evidence, plan and control are computed from the matrix, so what they depend on must be there: for an argument that it
owns, a message says what to write instead. Names have underscores.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from harness.core.cell.arguments import OF_OPTIMIZER, PASSED_ON, PREFIX
from harness.core.cell.schedule import KEYS
from harness.core.stack import safe_name
from harness.matrix.problems import KeyPath, Problems, shown

_ZERO = "a comparison with a control needs it to be 0"
_DATA = "the harness writes the documents and the tokenizer that upstream reads"
_SAMPLES = "schedules count steps here, each of train.global_batch documents: set its key of train: with _iters"
_STATE = "the harness cannot read gradients and optimizer state in this form"
_DENSE = "trainer bridge trains dense models here; trainer megatron and trainer harness have model.moe and model.mtp"
_RECURRENT = "recurrent layers have the sizes of attention"
_UPDATES = "the control's optimizer has one learning rate for all weights, and no loss scale"
_FILES = "a cell neither reads nor writes files outside its run directory"
_TRAINED = "the harness compares the gradients of all weights"
_EVALUATED = "an evaluation has the documents of one step, every train.eval_interval steps and at the end"
_AXES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "num_layers_per_virtual_pipeline_stage": "vpp",
    "num_virtual_stages_per_pipeline_rank": "vpp",
    "use_tp_pp_dp_mapping": "pp_before_dp",
    "decoder_first_pipeline_num_layers": "first_stage_layers",
    "decoder_last_pipeline_num_layers": "last_stage_layers",
    "num_layers_in_first_pipeline_stage": "first_stage_layers",
    "num_layers_in_last_pipeline_stage": "last_stage_layers",
    "account_for_embedding_in_pipeline_split": "embedding_as_layer",
    "account_for_loss_in_pipeline_split": "loss_as_layer",
    "pipeline_model_parallel_layout": "stages",
    "sequence_parallel": "sp",
    "micro_batch_size": "micro_batch_size",
    "bf16": "dtype",
    "fp16": "dtype",
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
    "kv_channels": "model.head_size",
    "vocab_size": "model.vocab",
    "rotary_base": "model.rope_base",
    "position_embedding_type": "model.position_embedding",
    "rotary_percent": "model.rotary_percent",
    "rotary_seq_len_interpolation_factor": "model.rotary_interpolation",
    "seq_len_interpolation_factor": "model.rotary_interpolation",
    "rotary_interleaved": "model.rotary_interleaved",
    "use_rope_scaling": "model.rope_scaling",
    "rope_scaling": "model.rope_scaling",
    "rope_scaling_factor": "model.rope_scaling_factor",
    "no_rope_freq": "model.no_rope_freq",
    "normalization": "model.normalization",
    "norm_epsilon": "model.norm_epsilon",
    "layernorm_epsilon": "model.norm_epsilon",
    "apply_layernorm_1p": "model.layernorm_1p",
    "layernorm_zero_centered_gamma": "model.layernorm_1p",
    "swiglu": "model.activation",
    "squared_relu": "model.activation",
    "quick_geglu": "model.activation",
    "gated_linear_unit": "model.activation",
    "disable_bias_linear": "model.biases",
    "add_bias_linear": "model.biases",
    "add_qkv_bias": "model.qkv_bias",
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
    "moe_grouped_gemm": "model.moe.grouped",
    "moe_layer_freq": "model.moe.layer_freq",
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
    **{name: f"train.{name}" for name in KEYS},
    "use_distributed_optimizer": "distributed_optimizer",
    "seed": "train.seed",
    "eval_interval": "train.eval_interval",
    "eod_mask_loss": "train.eod_mask_loss",
}
_REASONS = {
    "hidden_dropout": _ZERO,
    "attention_dropout": _ZERO,
    "sft": "the axis `packing` sets it",
    "use_varlen_dataset": "the axis `packing` sets it",
    "dataloader_inter_document_masking": "the axis `packing` sets it",
    "openai_gelu": "upstream reads it in no model; GELU is exact, set it by model.activation",
    **dict.fromkeys(("fp8_format", "fp4_format"), "cells compute in fp32 or bf16, as the axis dtype says"),
    "make_vocab_size_divisible_by": "the vocabulary is not padded, so that every layout has the same one",
    "spec": "the axes attention and model.pattern decide the layers",
    "optimizer": "the harness's own loop, which computes the control, has Adam",
    **dict.fromkeys(("lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples"), _SAMPLES),
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
    "model.num_moe_experts": _DENSE,
    "model.mtp_num_layers": _DENSE,
    "model.transformer_layer_spec": "set it by the axis attention",
    "optimizer.params_dtype": "set it by the axis dtype",
    "scheduler.max_steps": "set train.lr_decay_iters under train:",
    "scheduler.no_weight_decay_cond_type": "the control's norms and biases do not decay",
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
    "optimizer": "adam",
    "openai_gelu": "false",
}
_HAVE_NOT = [name for name, reason in _REASONS.items() if reason in (_UPDATES, _TRAINED) and name not in _HAVE]
_SHRUNK = ("window_size", "hybrid_layer_pattern", "hybrid_override_pattern", "moe_layer_freq")  # texts that are sizes
_EXACT = ("norm_epsilon", "layernorm_epsilon", "rotary_percent", "rope_scaling_factor")  # numbers that are no sizes
_OPPOSITE = ("untie_embeddings_and_output_weights", "disable_bias_linear")  # flags that turn their key off
_ACTIVATIONS = ("swiglu", "squared_relu", "quick_geglu")  # flags that are values of their key
_NOT_COMPARED = ("moe_token_dispatcher_type",)


def missing_in_models(name: str, words: tuple[str, ...], among: Mapping[str, Any], models: Iterable[Any]) -> str:
    """Return why an owned argument of a profile must not be left out: no model of the matrix has it. Empty if one has.

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
    wanted = "false" if field in _OPPOSITE and value == "true" else value
    if field in _ACTIVATIONS:
        if value == "false":
            return ""
        wanted = field
    key = "model.gated" if field == "gated_linear_unit" else key
    if any(_has(_read(model, key), wanted, field) for model in models):
        return ""
    return f"no model of this matrix has it: set {_AXES[field]} under model:, or leave it out of the profile"


def _divided(among: Mapping[str, Any], section: str) -> str:
    """Return the size of a head that the other arguments of a profile make, as text."""
    prefix = f"{section}." if section else ""
    sizes = [among.get(f"{prefix}{name}") for name in ("hidden_size", "num_attention_heads")]
    hidden, heads = (int(words[0]) if words and words[0].isdecimal() else 0 for words in sizes)
    return str(hidden // heads) if heads else ""


def _read(model: Any, key: str) -> Any:
    """Return the value of a key such as model.moe.topk; None where the model does not have the part."""
    *parts, name = key.split(".")[1:]
    owner = attrgetter(".".join(parts))(model) if parts else model
    return None if owner is None else getattr(owner, name)


def _has(have: Any, wanted: str, field: str) -> bool:
    """Return whether a model with the value `have` is one with the `wanted` one, but for its size."""
    if isinstance(have, bool):
        return wanted == str(have).lower()
    if field in _EXACT:
        return _same(wanted, str(have))
    if field not in _SHRUNK and isinstance(have, str):
        return wanted == have
    return bool(have) or _same(wanted, "0")


def _same(text: str, number: str) -> bool:
    try:
        return float(text) == float(number)
    except ValueError:
        return text == number


def key_of(name: str) -> str | None:
    """Return the axis or key for an argument, such as "tp" or "model.moe.topk"; None if a matrix has none."""
    return _AXES.get(name)


def is_had(name: str, value: str) -> bool:
    """Return whether every model of the harness has this value of an argument that no matrix sets."""
    return name in _HAVE and _same(value, _HAVE[name])


def owner_of(name: str) -> str | None:
    """Return why a matrix cannot pass on an argument, and what to do instead; None if it can."""
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
    """Return what `owner_of` does for a field of Megatron-Bridge's ConfigContainer; most have the names of
    Megatron-LM's arguments.
    """
    if name in _HOW_TO_SAVE:
        return None
    if section == "optimizer" and field in OF_OPTIMIZER:
        return f"the control needs it too: write {field.replace('_', '-')}"
    return _FIELDS.get(name) or _SECTIONS.get(section) or owner_of(field)


Words = tuple[str, ...]
Layer = dict[str, Words | None]  # name -> words, none for a switch; None leaves the argument out

MAX_ARGUMENTS = 200
_MAX_CHARACTERS = 1_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,99}(\.[a-z][a-z0-9_]{0,99}){1,4}")  # of Megatron-Bridge's ConfigContainer
_POSITIVE = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_NUMBER = re.compile(r"-\.?\d")
_HOW = "a number, a text, a list of them, true for a switch, or null to leave it out"


@dataclass(frozen=True)
class Profile:
    """Arguments of a run that a user pasted."""

    layer: Layer
    owned: Layer = field(default_factory=dict)  # those that no matrix passes on
    taken: Mapping[str, Any] = field(default_factory=dict)  # axes that some of these set, since the matrix does not
    left_out: Mapping[str, list[str]] = field(default_factory=dict)  # the others as written, by the reason


def words_of(value: Any) -> Words | None:
    """Return the words of a value in a matrix file.

    None for null and false. ValueError for anything that no argument can have.
    """
    if value is None or value is False:
        return None
    if value is True:
        return ()
    items = value if isinstance(value, list) else [value]
    if not items or any(isinstance(word, bool) or not isinstance(word, (int, float, str)) for word in items):
        raise ValueError(f"{shown(value)} is not a value of an argument; allowed: {_HOW}")
    return tuple(_word(str(word)) for word in items)


def _checked(name: str, words: Words | None) -> Words | None:
    """Return the words.

    ValueError unless an argument that the harness reads too is one number, or one of its values.
    """
    if words is not None and name in PASSED_ON and words not in [(value,) for value in PASSED_ON[name]]:
        raise ValueError(f"{shown(' '.join(words))} is not one of {', '.join(PASSED_ON[name])}")
    if words is None or name not in OF_OPTIMIZER:
        return words
    if len(words) != 1 or not _POSITIVE.fullmatch(words[0]) or not math.isfinite(float(words[0])):
        raise ValueError(f"{shown(' '.join(words))} is not one finite number of at least 0")
    return words


def _word(text: str) -> str:
    if not text or not text.isprintable() or len(text) > _MAX_CHARACTERS or text.startswith("--"):
        what = "printable characters, at least one and not two dashes first"
        raise ValueError(f"{shown(text)} is not a value of an argument; allowed: up to {_MAX_CHARACTERS} {what}")
    return text


def read_flags(text: str) -> Layer:
    """Return a pasted command line, with or without the command in front. ValueError if it is not one."""
    if "$" in text or "`" in text:
        raise ValueError("has a shell variable or command; write its value")
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ValueError(f"is not a command line: {error}") from error
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), -1)
    layer: Layer = {}
    name = ""
    for word in words[script + 1 :]:
        if word.startswith("--"):
            name, joined, value = word[2:].replace("-", "_").partition("=")
            if not _NAME.fullmatch(name):
                raise ValueError(f"{shown(word)} is not an argument")
            layer[name] = (_word(value),) if joined else ()
        elif not name or (word.startswith("-") and not _NUMBER.match(word)):
            allowed = "--name, --name value, --name=value"
            raise ValueError(f"{shown(word)} does not belong to an argument; allowed: {allowed}")
        else:
            layer[name] = (*(layer[name] or ()), _word(word))
    return layer


def parse_layer(section: Any, path: KeyPath, problems: Problems) -> Layer:
    """Return the arguments as a mapping or as a command line; everything wrong with them is added to `problems`."""
    if isinstance(section, str):
        try:
            layer = read_flags(section)
        except ValueError as error:
            problems.add(path, str(error))
            return {}
        for name, words in layer.items():
            parse_words(name, list(words or ()) or True, path, problems)
    else:
        values = problems.canonical(section, {}, path) or {}
        layer = {}
        for name, value in values.items():
            if (words := parse_words(name, value, (*path, name), problems)) is not INVALID:
                layer[name] = words
    if len(layer) > MAX_ARGUMENTS:
        problems.add(path, "too many arguments", found=str(len(layer)), allowed=f"at most {MAX_ARGUMENTS}")
    return layer


def parse_arguments(section: Any, problems: Problems) -> Layer:
    """Return the section `args`, for every cell."""
    layer = parse_layer(section, ("args",), problems)
    for name in layer:
        _check_owner(name, ("args", name), problems)
    return layer


def parse_profiles(section: Any, problems: Problems) -> dict[str, Profile]:
    """Return the section `profiles`. Arguments that the matrix sets itself are left out of a profile."""
    path: KeyPath = ("profiles",)
    if not isinstance(section, Mapping):
        problems.add(path, "must be a mapping", found=shown(section))
        return {}
    profiles: dict[str, Profile] = {}
    for name, section_of_profile in section.items():
        if not section_of_profile:
            problems.add((*path, str(name)), "is empty", hint="use null on the axis args")
        try:
            layer = parse_layer(section_of_profile, (*path, safe_name(name)), problems)
        except (TypeError, ValueError) as error:
            problems.add((*path, str(name)), str(error))
            continue
        owned = {key: words for key, words in layer.items() if owner_of(key)}
        passed = {key: words for key, words in layer.items() if key not in owned}
        profiles[name] = Profile(passed, owned)
    return profiles


def check_profiles(profiles: Mapping[str, Profile], models: Iterable[Any], problems: Problems) -> None:
    """Add a problem for what is left out of a profile though no model has it, and for profiles without effect.

    `models`: the ModelConfigs of the matrix.
    """
    effects: dict[tuple[tuple[str, Any], ...], str] = {}
    for name, profile in profiles.items():
        path: KeyPath = ("profiles", name)
        for key, words in profile.owned.items():
            if words is not None and (reason := missing_in_models(key, words, profile.owned, models)):
                problems.add(
                    path, f"{as_flag(key, words)} cannot be left out, since it defines another model", hint=reason
                )
        effect = (*sorted(profile.layer.items()), *sorted(profile.taken.items()))
        if not effect and profile.owned:
            problems.add(path, "has no effect: the matrix sets everything in it", hint="use null on the axis args")
        elif effect and effect in effects:
            problems.add(path, f"has the same effect as profile {effects[effect]}", hint="one of them is enough")
        effects.setdefault(effect, name)


def parse_axis_value(axis: str, value: Any, path: KeyPath, problems: Problems) -> Any:
    """Return the words of one value of an axis like "args.clip_grad"; INVALID after adding its problem."""
    name = axis.removeprefix(PREFIX)
    _check_owner(name, path, problems)
    return parse_words(name, value, path, problems)


def _check_owner(name: str, path: KeyPath, problems: Problems) -> None:
    if reason := owner_of(name):
        problems.add(path, f"{_as_passed(name)} cannot be passed on", hint=reason)


def as_flag(name: str, words: Words) -> str:
    """Return an argument as upstream's users write it."""
    return " ".join((_as_passed(name), *words))


def _as_passed(name: str) -> str:
    """Return the name as upstream's users write it."""
    return name if "." in name else f"--{name.replace('_', '-')}"


INVALID: Any = object()  # in place of an invalid value, whose problem was added


def parse_words(name: str, value: Any, path: KeyPath, problems: Problems) -> Any:
    """Return the words of one argument; INVALID after adding its problem."""
    if not _NAME.fullmatch(name) and not _FIELD.fullmatch(name):
        problems.add(path, "is not the name of an argument", hint="write it without the dashes in front")
        return INVALID
    if isinstance(value, bool) and "." in name:
        return (str(value).lower(),)  # a field is true or false, not a switch
    try:
        return _checked(name, words_of(value))
    except ValueError as error:
        problems.add(path, str(error))
        return INVALID


def as_written(layer: Mapping[str, Words | None]) -> dict[str, Any]:
    """Return the layer as in a matrix file."""
    return {name: _written(words) for name, words in layer.items()}


def _written(words: Words | None) -> Any:
    if not words:
        return None if words is None else True
    return words[0] if len(words) == 1 else list(words)
