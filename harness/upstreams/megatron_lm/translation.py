"""From a command line of Megatron-LM's training scripts, or the arguments that its log prints, to keys of a matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.core.cell.arguments import OF_OPTIMIZER
from harness.core.cell.model import ROTARY
from harness.core.cell.stages import checked_stages, stages_of
from harness.matrix.arguments import as_flag, is_had, key_of, owner_of
from harness.matrix.intake.keys import keep
from harness.matrix.intake.run import Settings, TrainingRun, Translation, as_words

SCRIPTS = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py")
_DUMP = re.compile(
    r"^[^\n]*-{8,} arguments -{8,}[^\n]*\n(.*?)^[^\n]*-{8,} end of arguments -{8,}", re.DOTALL | re.MULTILINE
)
_ROW = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*) \.+ (.*)$")
# Names in a log that are not those of a flag -> the flag, and the value with which it is not given.
_NOT_FLAGS = {
    "add_bias_linear": ("disable_bias_linear", True),
    "bias_swiglu_fusion": ("no_bias_swiglu_fusion", True),
    "bias_gelu_fusion": ("no_bias_gelu_fusion", True),
    "bias_dropout_fusion": ("no_bias_dropout_fusion", True),
    "masked_softmax_fusion": ("no_masked_softmax_fusion", True),
    "gradient_accumulation_fusion": ("no_gradient_accumulation_fusion", True),
    "create_attention_mask_in_dataloader": ("no_create_attention_mask_in_dataloader", True),
}
# What upstream does where a command line does not have an argument, if the harness's default differs.
_DEFAULTS: Mapping[str, Any] = {
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "clip_grad": 1.0,
    "weight_decay": 0.01,
    "lr_decay_style": "linear",
}
# Arguments of a log that are passed on where they have a value: what recomputes, exchanges or routes.
_PASSED_FROM_LOG = (
    "recompute_activations",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "accumulate_allreduce_grads_in_fp32",
    "grad_reduce_in_bf16",
    "tp_comm_overlap",
    "cross_entropy_loss_fusion",
    "moe_router_pre_softmax",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_topk_scaling_factor",
    "moe_router_dtype",
    "moe_shared_expert_overlap",
)
_SIZES = "sizes of the model, the batch and the run are the matrix's"
_KERNEL = "the harness chooses the kernel by what is installed (axis `attention`)"
_LOGGED = "it changes what is logged, not what is computed"
_CHECKPOINT = "cells write checkpoints only with the axis `resume`"
_DATA = "the harness writes the documents and the tokenizer that upstream reads"
_NO_FP8 = "cells run in bf16: no cell in fp8 or fp4 runs yet"
_NOTHING = {
    "max_position_embeddings": _SIZES,
    **dict.fromkeys(("ckpt_format", "no_save_optim", "no_save_rng", "no_load_optim", "no_load_rng"), _CHECKPOINT),
    **dict.fromkeys(("tiktoken_pattern", "no_mmap_bin_files", "no_create_attention_mask_in_dataloader"), _DATA),
    **dict.fromkeys(("profile_step_start", "profile_step_end", "profile_ranks"), _LOGGED),
    "transformer_impl": _KERNEL,
    "attention_backend": _KERNEL,
    "use_mcore_models": "these are the only models that upstream has",
    "use_flash_attn": _KERNEL,
    **dict.fromkeys(
        ("log_interval", "log_throughput", "log_params_norm", "log_num_zeros_in_grad", "timing_log_level"), _LOGGED
    ),
    **dict.fromkeys(("log_timers_to_tensorboard", "log_validation_ppl_to_tensorboard", "log_progress"), _LOGGED),
    **dict.fromkeys(("manual_gc", "manual_gc_interval", "empty_unused_memory_level"), "it changes speed alone"),
    "distributed_timeout_minutes": "cells have a deadline of their own",
    "cross_entropy_loss_fusion": "it rounds the gradients of logits to bf16, and the reference does not",
    **dict.fromkeys(("exit_signal_handler", "exit_on_missing_checkpoint"), "cells run train.steps steps, and end"),
    "init_method_std": "the harness sets all weights, the same ones in every layout",
    "nccl_communicator_config_path": "it configures NCCL",
}


def arguments_in_log(text: str) -> dict[str, Any] | None:
    """Return the arguments that upstream printed (megatron.training.arguments._print_args); None if the text has none.

    Names are those of flags. Prefixes of lines, such as torchrun's `[default0]:`, are allowed.
    """
    found = _DUMP.search(text)
    if found is None:
        return None
    settings: dict[str, Any] = {}
    for line in found[1].splitlines():
        row = _ROW.search(line.rstrip())
        if row:
            name, value = row[1], _value(row[2])
            flag, absent = _NOT_FLAGS.get(name, (name, None))
            settings[flag] = value if flag == name else (value is not absent)
    return settings


def _value(text: str) -> Any:
    """Return a value as Python prints it: None, a bool, a list of words, or the text."""
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    if text.startswith("[") and text.endswith("]"):
        return [word.strip().strip("'\"") for word in text[1:-1].split(",") if word.strip()]
    return text


def translate(run: TrainingRun) -> Translation:
    """Return what a run of pretrain_gpt.py is in a matrix. ValueError for a value that upstream cannot have either."""
    settings = Settings(run.settings if run.defaults_known else {**_DEFAULTS, **run.settings})
    result = Translation(project="megatron-lm", trainer="megatron", packing="", documents="adversarial")
    result.packing, result.documents, result.not_packed = _packing(settings)
    _layout(settings, result, run.ranks)
    _model(settings, result)
    _training(settings, result)
    for name, value in settings.left():
        if value is not False and value != []:  # in a log, what is off
            _rest(name, value, run.defaults_known, result)
    return result


def _packing(settings: Settings) -> tuple[str, str, str]:
    """Return the data path, its documents, and why the run does not pack."""
    sft, varlen = settings.on("sft"), settings.on("use_varlen_dataset")
    scheduler = settings.take("sequence_packing_scheduler")
    inter_document = settings.on("dataloader_inter_document_masking")
    if varlen or scheduler:
        return ("sft_scheduler" if sft and not varlen else "scheduler"), "uncut", ""
    if sft:
        return "sft", "adversarial", ""
    if inter_document:
        return "inter_document", "plain", ""
    switches = "--sft, --use-varlen-dataset or --dataloader-inter-document-masking"
    return "", "plain", f"the run does not pack: it has none of {switches}, so attention crosses documents in a row"


def _layout(settings: Settings, result: Translation, ranks: int | None) -> None:
    keys = result.keys
    tp, pp = settings.size("tensor_model_parallel_size"), settings.size("pipeline_model_parallel_size")
    cp = settings.size("context_parallel_size")
    keys |= {"tp": tp, "pp": pp, "cp": cp}
    keys["sp"] = settings.on("sequence_parallel") and tp > 1
    ep = settings.size("expert_model_parallel_size")
    if ep > 1:
        keys["ep"] = ep
    etp = settings.size("expert_tensor_parallel_size", 0)
    if etp and etp != tp:
        keys["etp"] = etp
    layers = settings.size("num_layers", 0) or settings.size("decoder_num_layers", 0)
    per_chunk = settings.size("num_layers_per_virtual_pipeline_stage", 0)
    counted = {
        "embedding_as_layer": settings.on("account_for_embedding_in_pipeline_split"),
        "loss_as_layer": settings.on("account_for_loss_in_pipeline_split"),
    }
    keys |= {name: on for name, on in counted.items() if on}
    parts = layers + sum(counted.values())
    vpp = settings.size("num_virtual_stages_per_pipeline_rank", 0) or (parts // (pp * per_chunk) if per_chunk else 1)
    if stages := settings.take("pipeline_model_parallel_layout"):
        (keys["stages"],) = map(checked_stages, as_words(stages))
        vpp = len(stages_of(keys["stages"])) // pp
    if vpp > 1:
        keys["vpp"] = vpp
    keys["model.layers"] = layers or pp * vpp
    world = ranks or settings.size("world_size", 0)
    settings.take("world_size")
    if world and world % (tp * pp * cp):
        raise ValueError(f"{world} ranks are not divisible by tp x pp x cp = {tp} x {pp} x {cp} = {tp * pp * cp}")
    keys["dp"] = world // (tp * pp * cp) if world else 1


def _model(settings: Settings, result: Translation) -> None:
    keys = result.keys
    hidden, heads = settings.size("hidden_size", 0), settings.size("num_attention_heads", 0)
    grouped = settings.on("group_query_attention")
    groups = settings.size("num_query_groups", 1)
    keys["model.heads"] = heads or 8
    keys["model.kv_heads"] = groups if grouped else keys["model.heads"]
    keys["model.hidden"] = hidden or 8 * keys["model.heads"]
    keys["model.activation"] = _activation(settings)
    keys["model.ffn"] = settings.size("ffn_hidden_size", 0) or (
        int(4 * hidden * 2 / 3) // 64 * 64 if keys["model.activation"] == "swiglu" else 4 * hidden
    )
    keys["model.tied"] = not settings.on("untie_embeddings_and_output_weights")
    channels = settings.size("kv_channels", 0)
    if channels and heads and channels != hidden // heads:
        keep(result, "kv_channels", channels, as_flag("kv_channels", (str(channels),)))
    _positions(settings, result)
    _biases(settings, result)
    window = settings.take("window_size")
    if window is not None:
        keys["model.window"] = int(re.findall(r"\d+", str(window))[0])
    if settings.on("multi_latent_attention"):
        _latent(settings, result)
    experts = settings.size("num_experts", 0)
    if experts:
        keys["model.moe.experts"] = experts
        if "moe_ffn_hidden_size" not in settings:
            keys["model.moe.ffn"] = keys["model.ffn"]


def _activation(settings: Settings) -> str:
    """Return the activation, which upstream's log also prints as gated_linear_unit."""
    settings.take("gated_linear_unit")
    on = [name for name in ("swiglu", "squared_relu", "quick_geglu") if settings.on(name)]
    return on[0] if on else "gelu"


def _positions(settings: Settings, result: Translation) -> None:
    """Set what `_rest` cannot say by one name: an older flag of rotary positions, and a factor that may not be read."""
    if settings.on("use_rotary_position_embeddings"):
        settings.take("position_embedding_type")
        result.keys["model.position_embedding"] = ROTARY
    result.keys["model.rope_scaling"] = settings.on("use_rope_scaling")
    factor = settings.take("rope_scaling_factor")
    if factor is not None and result.keys["model.rope_scaling"]:
        result.keys["model.rope_scaling_factor"] = float(factor)


def _biases(settings: Settings, result: Translation) -> None:
    """Set biases, which upstream's models have unless told otherwise; those of all layers are also of attention."""
    biases, of_attention = not settings.on("disable_bias_linear"), settings.on("add_qkv_bias")
    if biases and "num_experts" in settings:
        result.leave_out("no --disable-bias-linear", "the harness's reference has no biases of experts and routers")
        biases, of_attention = False, True
    result.keys |= {"model.biases": biases, "model.qkv_bias": of_attention and not biases}


def _latent(settings: Settings, result: Translation) -> None:
    result.keys["model.mla.q_lora_rank"] = settings.take("q_lora_rank")
    for name, default in {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}.items():
        result.keys[f"model.mla.{name}"] = settings.size(name, default)
    if settings.on("qk_layernorm"):
        result.same.append("--qk-layernorm, which latent attention always has")
    result.keys["model.mla.rope"] = settings.take("rope_type", "yarn")


def _training(settings: Settings, result: Translation) -> None:
    keys = result.keys
    half, bf16 = settings.on("fp16"), settings.on("bf16")
    if half:
        result.leave_out("--fp16", "the harness has fp32 and bf16: cells run in bf16")
    keys["dtype"] = "bf16" if bf16 or half else "fp32"
    for name in ("fp8_format", "fp4_format"):
        if value := settings.take(name):
            result.leave_out(f"--{name.replace('_', '-')} {value}", _NO_FP8)
    sharded, reduce, gather = (
        settings.on(name) for name in ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")
    )
    keys["distributed_optimizer"] = ("overlap" if reduce and gather else "on") if sharded else "off"
    if reduce and not (sharded and gather):
        result.args["overlap_grad_reduce"] = ()
    keys["micro_batch_size"] = settings.size("micro_batch_size")
    keys["train.global_batch"] = settings.size("global_batch_size", 0) or keys["micro_batch_size"] * keys["dp"]
    keys["train.seq_length"] = settings.size("seq_length", 0) or settings.size("max_position_embeddings", 64)
    keys["train.lr"] = float(settings.take("lr", 1e-3))
    keys["packing_options.calculate_per_token_loss"] = settings.on("calculate_per_token_loss")
    keys["packing_options.average_in_collective"] = settings.on("ddp_average_in_collective")
    for name in ("train_iters", "train_samples"):
        if value := settings.take(name):
            result.leave_out(f"--{name.replace('_', '-')} {value}", _SIZES)
    for name in ("hidden_dropout", "attention_dropout"):
        value = settings.take(name, 0.1)
        if float(value):
            result.leave_out(f"--{name.replace('_', '-')} {value}", "dropout is 0, since results are compared exactly")
    if settings.size("eval_iters", 0) and settings.size("eval_interval", 1000):
        result.leave_out("--eval-iters, --eval-interval", "`train.eval_interval: 1` evaluates after each step")


def _rest(name: str, value: Any, from_log: bool, result: Translation) -> None:
    """Keep, pass on or leave out a setting that has no treatment of its own."""
    written = as_flag(name, as_words(value))
    if name in _NOTHING:
        result.leave_out(written, _NOTHING[name])
    elif is_had(name, " ".join(as_words(value)) or "true"):
        result.same.append(written)
    elif name.startswith(("fp8_", "fp4_")):
        result.leave_out(written, _NO_FP8)
    elif key_of(name):
        keep(result, name, value, written)
    elif reason := owner_of(name):
        result.leave_out(written, reason)
    elif not from_log or name in (*OF_OPTIMIZER, *_PASSED_FROM_LOG):
        result.args[name] = as_words(value)
    else:
        result.leave_out(written, "a log does not say which arguments are upstream's defaults: add it under `args`")
