"""From Megatron-Bridge's run_config.yaml, a dumped ConfigContainer, to keys of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core.cell.arguments import OF_OPTIMIZER
from harness.core.cell.model import ACTIVATIONS
from harness.matrix.arguments import is_had, key_of
from harness.matrix.intake.configuration import flat
from harness.matrix.intake.fields import finish, layout, schedule, trainer_of
from harness.matrix.intake.fields import of_transformer as field
from harness.matrix.intake.keys import keep
from harness.matrix.intake.run import Settings, TrainingRun, Translation, as_words
from harness.upstreams.megatron_bridge.spec import BRIDGE

_DEFAULTS = "a dump does not say which fields are upstream's defaults: add those that matter under `args`"
_REASONS: Mapping[str, str] = {
    **{
        f"{section}.": _DEFAULTS
        for section in ("model", "ddp", "optimizer", "optimizer_config", "scheduler", "comm_overlap")
    },
    **dict.fromkeys(
        ("dataset.", "tokenizer."), "the harness writes the documents and the tokenizer that upstream reads"
    ),
    **dict.fromkeys(
        ("checkpoint.", "logger.", "train.", "validation.", "profiling.", "dist.", "rng.", "ft.", "rerun_", "nvrx_"),
        "cells run train.steps steps, and write to their run directory alone",
    ),
    **dict.fromkeys(
        ("straggler", "inprocess", "tensor_inspect", "mixed_precision"), "it is not part of a training step"
    ),
    "env_vars.": "it configures the machine",
}
_MODEL = "model."
_LATENT = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
_SIZES_TAKEN = (
    "hidden_size",
    "num_attention_heads",
    "ffn_hidden_size",
    "num_layers",
    "num_query_groups",
    "kv_channels",
)


def of_values(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of a dumped ConfigContainer by dotted names; None if it is none."""
    target = str(values.get("_target_", ""))
    model = values.get("model")
    own = "megatron.bridge" in target or (
        isinstance(model, Mapping) and "megatron.bridge" in str(model.get("_target_", ""))
    )
    if not own or not isinstance(model, Mapping):
        return None
    transformer = model.get("transformer")
    if isinstance(transformer, Mapping):  # a ModelConfig with the TransformerConfig in it
        values = {**values, "model": {**model, **transformer, "transformer": None}}
    dumped = flat({name: _plain(value) for name, value in values.items()})
    return {name: value for name, value in dumped.items() if not name.endswith("_")}


def _plain(value: Any) -> Any:
    """Return a value without what a dump says of classes: of a function or a dtype the name, e.g. "silu"."""
    if not isinstance(value, Mapping):
        return value
    if value.get("_call_") is False:
        return str(value.get("_target_", "")).rpartition(".")[2]
    return {name: _plain(part) for name, part in value.items()}


def translate(run: TrainingRun) -> Translation:
    """Return what the run is in a matrix. ValueError for a size that cannot be meant."""
    settings = Settings(run.settings)
    result = Translation(project="megatron-bridge", trainer="bridge", packing="", documents="uncut")
    ranks = settings.size("train.world_size", 0) or settings.size("world_size", 0)
    layout(settings, result, _MODEL, ranks or run.ranks)
    _model(settings, result)
    _activation(settings, result)
    _training(settings, result)
    _packing(settings, result)
    for name, value in list(settings.left()):
        own = name.removeprefix(_MODEL)
        if name.startswith(_MODEL) and (key_of(own) or own == "recompute_granularity") and own not in _SIZES_TAKEN:
            settings.take(name)
            _field(result, own, value, f"{name}={value}")
        elif name.startswith(_MODEL) and is_had(own, " ".join(as_words(value)) or "true"):
            settings.take(name)
            result.same.append(f"{name} {value}")
    if result.trainer == BRIDGE.name:
        result.trainer = trainer_of(result, BRIDGE)
    finish(settings, result, _REASONS, whole=True)
    return result


def _field(result: Translation, name: str, value: Any, written: str) -> None:
    """Keep a field; of a window, the tokens before a token's own."""
    if name == "window_size":
        result.keys["model.window"] = int(value[0] if isinstance(value, list) else value)
    else:
        field(result, name, value, written)


def _model(settings: Settings, result: Translation) -> None:
    keys = result.keys
    hidden, heads = settings.size("model.hidden_size", 0), settings.size("model.num_attention_heads", 0)
    if not hidden or not heads:
        raise ValueError("has no model.hidden_size and model.num_attention_heads, which run_config.yaml of a run has")
    keys |= {"model.hidden": hidden, "model.heads": heads}
    keys["model.layers"] = settings.size("model.num_layers", keys["pp"] * keys.get("vpp", 1))
    keys["model.kv_heads"] = settings.size("model.num_query_groups", heads)
    keys["model.ffn"] = settings.size("model.ffn_hidden_size", 4 * hidden)
    keys["model.tied"] = settings.on("model.share_embeddings_and_output_weights", True)
    channels = settings.size("model.kv_channels", 0)
    if channels and channels != hidden // heads:
        keep(result, "kv_channels", channels, f"model.kv_channels={channels}")
    if settings.on("model.multi_latent_attention"):
        for name, default in _LATENT.items():
            value = settings.take(f"{_MODEL}{name}", default)
            keys[f"model.mla.{name}"] = value
    if experts := settings.size("model.num_moe_experts", 0):
        keys["model.moe.experts"] = experts


def _activation(settings: Settings, result: Translation) -> None:
    """Set the activation, for which upstream has two fields."""
    if "model.activation_func" not in settings:
        return
    function, gated = settings.take("model.activation_func"), settings.on("model.gated_linear_unit")
    known = {(activation.function, activation.gated): name for name, activation in ACTIVATIONS.items()}
    if (function, gated) in known:
        result.keys["model.activation"] = known[function, gated]
    else:
        written = f"model.activation_func={function}, model.gated_linear_unit={gated}"
        result.leave_out(written, f"model.activation is none of {', '.join(ACTIVATIONS)}")


def _training(settings: Settings, result: Translation) -> None:
    keys = result.keys
    mixed = str(settings.take("mixed_precision", "")) + str(settings.on("model.bf16"))
    keys["dtype"] = "bf16" if "bf16" in mixed or "True" in mixed or settings.on("mixed_precision.bf16") else "fp32"
    keys["micro_batch_size"] = settings.size("train.micro_batch_size")
    keys["train.global_batch"] = settings.size("train.global_batch_size", 8)
    keys["train.seq_length"] = settings.size("model.seq_length", 0) or settings.size("dataset.seq_length", 64)
    keys["train.lr"] = float(settings.take("optimizer.lr", 1e-3))
    sharded = settings.on("optimizer.use_distributed_optimizer") or settings.on("ddp.use_distributed_optimizer")
    overlaps = [settings.on(f"ddp.{name}") for name in ("overlap_grad_reduce", "overlap_param_gather")]
    keys["distributed_optimizer"] = ("overlap" if all(overlaps) else "on") if sharded else "off"
    keys["packing_options.calculate_per_token_loss"] = settings.on("model.calculate_per_token_loss")
    keys["packing_options.average_in_collective"] = settings.on("ddp.average_in_collective")
    for name in OF_OPTIMIZER:
        value = settings.take(f"optimizer.{name}")
        if value is not None:
            result.args[name] = as_words(value)
    schedule(settings, result, ("scheduler.", "optimizer."))


def _packing(settings: Settings, result: Translation) -> None:
    """Choose the data path by the switches of the data set, under their names since 0.6 or before."""
    keys = result.keys
    offline = next(
        (name for name in ("offline_packing_specs", "packed_sequence_specs") if _has(settings, f"dataset.{name}.")), ""
    )
    specs = f"dataset.{offline}."
    size = settings.size(f"{specs}packed_sequence_size", -1) if offline else -1
    in_batch = settings.on("dataset.enable_in_batch_packing") or settings.on("dataset.pack_sequences_in_batch")
    if offline and (size > 0 or settings.on("dataset.enable_offline_packing")):
        # With turns that end as documents do: labels after such a token are a case of their own (pull request 5213).
        result.packing, result.documents = "bridge_offline", "delimited"
        keys["train.seq_length"] = size if size > 0 else keys["train.seq_length"]
        if (multiple := settings.size(f"{specs}pad_seq_to_mult", 1)) > 1:
            keys["packing_options.pad_seq_to_mult"] = multiple
        fixed = settings.on(f"{specs}pad_cu_seqlens")
        keys["packing_options.pad_cu_seqlens"] = keys["packing_options.metadata"] = fixed
        to_longest = settings.on("dataset.pad_to_max_length") or settings.on("dataset.dataset_kwargs.pad_to_max_length")
        keys["packing_options.pad_to_max_length"] = fixed or to_longest
    elif in_batch:
        result.packing, result.trainer = "bridge_in_batch", "harness"
    elif keys["cp"] > 1 and _has(settings, "dataset.dataset_root"):
        result.packing = "bridge_long"
    if not result.packing:
        result.not_packed = (
            "the run does not pack: its data set has neither enable_offline_packing (packed_sequence_specs) nor "
            "enable_in_batch_packing (pack_sequences_in_batch)"
        )
        result.trainer, result.documents = "harness", "plain"


def _has(settings: Settings, prefix: str) -> bool:
    return any(name.startswith(prefix) for name, _ in settings.left())
