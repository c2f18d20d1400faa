"""What configurations of projects on Megatron have in common: fields with the names of Megatron's own configurations.

A project says under which section its fields are, and what its own settings mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core.cell.arguments import OF_OPTIMIZER
from harness.core.cell.axis_values import HARNESS
from harness.core.cell.schedule import KEYS as SCHEDULE
from harness.matrix.arguments import is_had, key_of, owner_of
from harness.matrix.intake.keys import declaration, keep
from harness.matrix.intake.models import public_model
from harness.matrix.intake.run import Settings, Translation, as_words
from harness.matrix.rules.trainer import OF_ALL
from harness.upstreams.descriptor import Trainer
from harness.upstreams.table import DATA_PATHS

ROLLOUT = "rollouts, rewards and advantages come before training, and cells train on given documents"
DATA = "the harness writes the documents and the tokenizer that upstream reads"
RUN = "cells run train.steps steps, and write to their run directory alone"
SPEED = "it changes speed or memory alone"
UNTRAINED = "a cell trains one model, with the loss of the next token"
OWN_LOOP = "cells train in the harness's own loop, which has no such setting"
NO_KEY = "the harness has no key for it"
_SPEED = (
    *("gradient_accumulation_fusion", "moe_permute_fusion", "bias_activation_fusion"),
    *("masked_softmax_fusion", "bias_dropout_fusion", "moe_enable_deepep", "moe_shared_expert_overlap"),
    *("use_gloo_process_groups", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("moe_flex_dispatcher_backend", "deallocate_pipeline_outputs", "batch_p2p_comm", "overlap_p2p_comm"),
)
_KERNEL = ("attention_backend", "transformer_impl", "apply_rope_fusion", "persist_layer_norm")


def layout(settings: Settings, result: Translation, section: str, ranks: int | None, *, sp: bool | None = None) -> None:
    """Set the axes of the layout from a section such as "policy.megatron_cfg."; `sp`: whatever the section says.

    ValueError if the ranks do not divide by tp x pp x cp.
    """
    keys = result.keys
    sizes = {
        axis: settings.size(f"{section}{name}_parallel_size")
        for axis, name in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context"), ("ep", "expert_model"))
    }
    keys |= {axis: size for axis, size in sizes.items() if axis != "ep" or size > 1}
    etp = settings.size(f"{section}expert_tensor_parallel_size", 0)
    if etp and etp != keys["tp"] and (sizes["ep"] > 1 or "model.moe.experts" in keys):
        keys["etp"] = etp
    vpp = settings.size(f"{section}virtual_pipeline_model_parallel_size")
    if vpp > 1:
        keys["vpp"] = vpp
    wanted = settings.on(f"{section}sequence_parallel")
    keys["sp"] = (wanted if sp is None else sp) and keys["tp"] > 1
    shares = keys["tp"] * keys["pp"] * keys["cp"]
    if ranks and ranks % shares:
        sizes_ = f"{keys['tp']} x {keys['pp']} x {keys['cp']} = {shares}"
        raise ValueError(f"{ranks} ranks are not divisible by tp x pp x cp = {sizes_}")
    if ranks:
        keys["dp"] = ranks // shares
    else:
        result.leave_out("dp", "the run does not say on how many ranks it is: cells have the fewest replicas")


def named_model(result: Translation, name: Any) -> None:
    """Set the keys of the model from its public name; the harness's default structure if its sizes are not known.

    To be called after `layout`, which says whether it has experts.
    """
    model = public_model(str(name or ""))
    keys = result.keys
    if model is None:
        experts = keys.get("ep", 1) > 1 or "etp" in keys
        kind = "mixture of experts" if experts else "dense model"
        groups = max(4, keys["tp"])
        keys |= {"model.heads": 2 * groups, "model.kv_heads": groups, "model.hidden": 16 * groups}
        keys |= {"model.layers": keys["pp"] * keys.get("vpp", 1), "model.ffn": 32 * groups}
        keys |= {"model.moe.experts": 8 * keys.get("ep", 1), "model.moe.topk": 2} if experts else {}
        reason = f"the configuration does not say its sizes: a {kind} of the harness's default structure is tested"
        result.leave_out(f"the model {name}" if name else "the model", reason)
        return
    keys |= {
        "model.layers": model.layers,
        "model.hidden": model.hidden,
        "model.ffn": model.ffn,
        "model.heads": model.heads,
        "model.kv_heads": model.kv_heads,
        "model.tied": not model.fields.get("untie_embeddings_and_output_weights", True),
    }
    if model.head_size:
        keys["model.head_size"] = model.head_size
    for field, value in model.fields.items():
        if field in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            keys[f"model.mla.{field}"] = value
        elif field != "untie_embeddings_and_output_weights":
            keep(result, field, value, f"{field} {value} of {name}")
    result.same.append(f"the model {name}, by its public sizes")


def of_transformer(result: Translation, name: str, value: Any, written: str) -> None:
    """Keep or leave out a field of Megatron's TransformerConfig, DistributedDataParallelConfig or OptimizerConfig."""
    if value is None or value in ([], {}) or _of_no_part(result, name):
        return
    if name == "recompute_granularity":
        if value in ("full", "selective"):
            result.keys["recompute"] = value
        return
    if name in OF_OPTIMIZER:
        result.args[name] = as_words(value)
    elif name in _SPEED or name.startswith(("fine_grained", "cuda_graph", "offload")):
        if value is not False:
            result.leave_out(written, SPEED)
    elif name in _KERNEL:
        result.leave_out(written, "the harness chooses the kernel by what is installed (axis `attention`)")
    elif is_had(name, " ".join(as_words(value)) or "true"):
        result.same.append(written)
    elif key_of(name):
        if _is_off(name, value):
            return
        keep(result, name, value, written)
    elif value is not False:  # what is off in the run is off in cells
        result.leave_out(written, owner_of(name) or OWN_LOOP)


def of_megatron(settings: Settings, result: Translation, section: str) -> None:
    """Keep or leave out the fields of a section of a configuration that have Megatron's names."""
    for name, value in settings.take_section(section).items():
        of_transformer(result, name, value, f"{section}{name}={value}")


def schedule(settings: Settings, result: Translation, sections: tuple[str, ...]) -> None:
    """Keep the schedule of the learning rate and of the weight decay, whose fields are in one of the sections.

    To be called after the optimizer's own fields: a constant decay of upstream's scheduler replaces the optimizer's.
    """
    named = ((name, f"{section}{name}") for name in SCHEDULE for section in sections)
    given = {name: (value, written) for name, written in named if (value := settings.take(written)) is not None}
    if str(given.get("weight_decay_incr_style", ("constant",))[0]) == "constant":
        decay, written = given.get("end_weight_decay", (None, ""))
        own = result.args.get("weight_decay")
        if decay is not None and own and float(decay) != float(own[0]):
            result.leave_out(f"weight_decay {own[0]} of the optimizer", f"{written} replaces it in every step")
        if decay is not None:
            result.args["weight_decay"] = as_words(decay)
        given = {name: value for name, value in given.items() if "weight_decay" not in name}
    if str(given.get("lr_decay_style", ("",))[0]) != "WSD":
        given = {name: value for name, value in given.items() if "wsd" not in name}
    for name, (value, written) in given.items():
        keep(result, name, value, f"{written}={value}")


def trainer_of(result: Translation, trainer: Trainer) -> str:
    """Return upstream's trainer if its cells can have every part of the model, else the harness's own loop."""
    supported = {*OF_ALL, *trainer.model}
    given = {name.split(".")[1]: (name, value) for name, value in result.keys.items() if name.startswith("model.")}
    for part, (name, value) in given.items():
        declared = declaration(name)
        if part not in supported and (declared is None or value != declared.default):
            return HARNESS
    return trainer.name


def _of_no_part(result: Translation, name: str) -> bool:
    """Return whether a field is of experts or of prediction layers that the model does not have."""
    keys = result.keys
    experts = name.startswith("moe_") and "model.moe.experts" not in keys
    return experts or (name.startswith("mtp_") and name != "mtp_num_layers" and "model.mtp.layers" not in keys)


def _is_off(name: str, value: Any) -> bool:
    """Return whether a field says that a part is not there, as upstream's defaults do."""
    return value is False or (name.startswith(("moe_", "mtp_")) and value in (0, 0.0))


def finish(settings: Settings, result: Translation, reasons: Mapping[str, str], *, whole: bool) -> None:
    """Make the model consistent, and leave out the settings that are left over.

    `reasons`: by the beginning of a name. `whole`: the settings are a whole configuration, so that sections are named
    and not each of their settings.
    """
    keys = result.keys
    if keys.get("model.moe.expert_bias"):
        keys.setdefault("model.moe.score_function", "sigmoid")  # upstream refuses the bias without it
    if not keys.get("model.rope_scaling"):
        keys.pop("model.rope_scaling_factor", None)  # upstream does not read it
    path = DATA_PATHS.get(result.packing)
    if "model.mtp.layers" in keys and keys["pp"] > 1 and path and not path.tokens_on_last_stage:
        layers = [f"{name} {keys.pop(name)}" for name in list(keys) if name.startswith("model.mtp.")]
        result.leave_out(", ".join(layers), "the harness's adapter of this data path gives prediction layers no tokens")
    named: dict[tuple[str, str], None] = {}
    for name, value in settings.left():
        prefix = max((prefix for prefix in reasons if name.startswith(prefix)), key=len, default="")
        reason = reasons.get(prefix) or NO_KEY
        end = name.find(".", len(prefix.rstrip(".")))
        section = name if end < 0 else name[:end]
        named[(section if whole else f"{name}={value}", reason)] = None
    for text, reason in named:
        result.leave_out(text, reason)
