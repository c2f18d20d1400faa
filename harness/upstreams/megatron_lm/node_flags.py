"""A cell as the command line of pretrain_gpt.py, beyond what the data path sets (node_sft_checkout.py)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from harness.core.cell.axis_values import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.cell.reports import log_interval
from harness.core.cell.schedule import changed_keys
from harness.core.cell.upstream_config import recurrent_fields
from harness.core.run.run_dir import AttemptDir
from harness.features.attention.node_kinds import attention_fields
from harness.features.experts.config import SCORES, MoeConfig
from harness.features.experts.layers import EVERY
from harness.features.hybrid.node_model import pattern_of, use_own_norm
from harness.probe.model.gpt import hybrid_spec
from harness.runtime.device.placement import Device
from harness.upstreams.megatron_lm.node_files import PROMPT_FORMAT, blend, mock_config, tokenizer
from harness.upstreams.megatron_lm.node_sft_checkout import model_flags

_MODULE, _NAME = "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"
SPEC = ["--spec", _MODULE, _NAME]


# A hybrid model for upstream's pretrain_hybrid.py: its flags, and layers that a CPU can run.
#
# Upstream's own layer specs need Transformer Engine; like its local layers (`use_own_layers` of node_wrappers.py) they
# are replaced where its script takes them from, by those of the harness's own loop.
def hybrid_values(config: CellConfig) -> dict[str, Any]:
    """Return the values of flags: the pattern, from which upstream takes virtual stages, and the sizes of recurrent
    layers.
    """
    sizes = {name.replace("_", "-"): value for name, value in recurrent_fields(config.model).items()}
    return {"hybrid-layer-pattern": pattern_of(config), **sizes}


def use_own_hybrid_layers(config: CellConfig) -> None:
    """Put the cell's layers where the script's --spec finds them."""
    if config.model.hybrid and config.attention not in TE_KINDS:
        use_own_norm(config)
        setattr(importlib.import_module(_MODULE), _NAME, hybrid_spec(config))


_SWITCHES = {
    "off": (),
    "on": ("use-distributed-optimizer",),
    "overlap": ("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather"),
}
_OF_DATA = {
    "sft": [],  # --sft itself is a flag of the data path
    "sft_scheduler": [],
    "scheduler": ["use-varlen-dataset"],
    "unpacked": [],
    "inter_document": ["dataloader-inter-document-masking"],
}
_FULL = ("--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1")
_RECOMPUTE = {
    "none": (),
    "selective": ("--recompute-granularity=selective",),
    "full": _FULL,
    "full-split": (*_FULL, "--distribute-saved-activations"),
}


def flags(config: CellConfig, folder: Path, device: Device) -> list[str]:
    """Return all flags of the script; `folder`: with the files of `write_files`."""
    values: dict[str, Any] = {
        "global-batch-size": len(config.samples(0)),
        # Padding the vocabulary, by default to 128 x tp, would give every tp another model.
        "make-vocab-size-divisible-by": 1,
        "normalization": config.model.normalization,
        "norm-epsilon": config.model.norm_epsilon,
        "rotary-base": config.model.rope_base,
        "hidden-dropout": 0.0,
        "attention-dropout": 0.0,
        "distributed-backend": device.backend,
        **_attention(config),
        **_positions(config.model),
        **_windows(config.model),
        **_experts(config),
        **_tokenizer(config, folder),
        **({"sequence-packing-scheduler": "dp_balanced"} if config.path.scheduled else {}),
        **_optimizer(config),
        **_checkpoint(config, AttemptDir(folder.parent).checkpoint),
    }
    if config.model.hybrid:
        values |= hybrid_values(config)
    switches = ["no-bias-swiglu-fusion", "no-bias-dropout-fusion", *_model_switches(config.model)]
    switches += ["accumulate-allreduce-grads-in-fp32", *_SWITCHES[config.distributed_optimizer]]
    switches += _expert_switches(config.model.moe)
    switches += _OF_DATA[config.data_path]
    switches += ["eod-mask-loss"] if config.train.eod_mask_loss and not config.path.chats else []
    switches += ["ddp-average-in-collective"] if config.options.average_in_collective else []
    own_flags = [*model_flags(config, values), *(f"--{name}" for name in switches), *_RECOMPUTE[config.recompute]]
    own_flags += SPEC if config.model.hybrid else []
    # argparse would take the last of two values, but a switch such as --sft cannot be unset by a later flag.
    overridden = {word.partition("=")[0] for argument in config.args.given for word in argument.flag[:1]}
    own_flags = [flag for flag in own_flags if flag.partition("=")[0] not in overridden]
    return [*own_flags, *_data(config, folder), *config.args.flags()]


def _attention(config: CellConfig) -> dict[str, Any]:
    """Return Transformer Engine's layers for its kinds of attention; for others Megatron's local ones.

    The harness's attention gathers keys and values, which branch dev requires of local layers.
    """
    kind = config.attention
    if kind not in TE_KINDS:
        gathers = {"cp-comm-type": "all_gather"} if config.layout.cp > 1 else {}
        return {"transformer-impl": "local", **gathers}
    return {
        "transformer-impl": "transformer_engine",
        "attention-backend": attention_fields(kind)["attention_backend"].name,
    }


def _positions(model: ModelConfig) -> dict[str, Any]:
    values = {
        "rotary-percent": model.rotary_percent,
        "rotary-seq-len-interpolation-factor": model.rotary_interpolation,
        "rope-scaling-factor": model.rope_scaling_factor if model.rope_scaling else None,
        "no-rope-freq": model.no_rope_freq,
    }
    return {name: value for name, value in values.items() if value is not None}


def _model_switches(model: ModelConfig) -> list[str]:
    switches = {
        "use-rope-scaling": model.rope_scaling,
        "rotary-interleaved": model.rotary_interleaved,
        "apply-layernorm-1p": model.layernorm_1p,
        "disable-bias-linear": not model.biases,
        "add-qkv-bias": model.qkv_bias,
        "qk-layernorm": model.qk_layernorm,
        "untie-embeddings-and-output-weights": not model.tied,
    }
    return [name for name, on in switches.items() if on]


def _windows(model: ModelConfig) -> dict[str, Any]:
    values = {
        "window-size": None if model.window is None else f"{model.window},0",
        "window-attn-skip-freq": model.window_skip,
    }
    return {name: value for name, value in values.items() if value is not None}


def _experts(config: CellConfig) -> dict[str, Any]:
    """Set experts as probe/model/parts.py does in the harness's own loop."""
    moe = config.model.moe
    if moe is None:
        return {}
    return {
        **_later(moe, config.layout),
        "num-experts": moe.experts,
        "moe-router-topk": moe.topk,
        "moe-ffn-hidden-size": moe.ffn,
        "moe-router-load-balancing-type": moe.aux_loss,
        "moe-aux-loss-coeff": moe.aux_loss_coeff if moe.balanced else 0.0,
        "moe-token-dispatcher-type": moe.dispatcher,
        "expert-model-parallel-size": config.layout.ep,
    }


def _later(moe: MoeConfig, layout: Layout) -> dict[str, Any]:
    """Return the settings that are left out at their defaults, which not all releases know. A switch has no value."""
    values = {
        "moe-z-loss-coeff": moe.z_loss_coeff or None,
        "moe-router-score-function": moe.score_function if moe.score_function != SCORES[0] else None,
        "moe-router-bias-update-rate": moe.bias_rate if moe.expert_bias else None,
        "moe-shared-expert-intermediate-size": moe.shared_ffn,
        "moe-expert-capacity-factor": moe.capacity_factor,
        "moe-token-drop-policy": moe.drop_policy if moe.capacity_factor is not None else None,
        "moe-layer-freq": moe.layer_freq if moe.layer_freq != EVERY else None,
        "expert-tensor-parallel-size": layout.etp or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _expert_switches(moe: MoeConfig | None) -> list[str]:
    switches = {
        "moe-router-pre-softmax": moe and moe.pre_softmax,
        "moe-router-enable-expert-bias": moe and moe.expert_bias,
        "moe-shared-expert-gate": moe and moe.shared_gate,
        "moe-grouped-gemm": moe and moe.grouped,
        "moe-pad-expert-input-to-capacity": moe and moe.pad_to_capacity,
    }
    return [name for name, on in switches.items() if on]


def _tokenizer(config: CellConfig, folder: Path) -> dict[str, Any]:
    words = {"num-workers": 0, "tokenizer-model": tokenizer(folder)}
    if config.path.chats:
        return {**words, "tokenizer-type": "SFTTokenizer", "sft-tokenizer-prompt-format": PROMPT_FORMAT}
    return {**words, "tokenizer-type": "HuggingFaceTokenizer"}


def _data(config: CellConfig, folder: Path) -> list[str]:
    if config.documents.mock:
        name = "sft" if config.path.sft_flag else "varlen"
        return ["--mock-data", f"--{name}-mock-dataset-config-json={mock_config(folder)}"]
    evaluated = ["--valid-data-path", *blend(folder, config, evaluated=True)] if config.train.eval_interval else []
    return ["--train-data-path", *blend(folder, config), *evaluated]


def _checkpoint(config: CellConfig, folder: Path) -> dict[str, Any]:
    if config.resume:
        return {"save": folder, "save-interval": config.train.save_step}
    return {"load": folder, "ckpt-step": config.start_step} if config.start_step else {}


def _optimizer(config: CellConfig) -> dict[str, Any]:
    """Set the optimizer as the harness's own loop does: Adam with upstream's defaults, no clipping."""
    return {
        "min-lr": config.train.min_lr,
        "lr-decay-style": config.train.lr_decay_style,
        **{name.replace("_", "-"): value for name, value in changed_keys(config.train).items()},
        "clip-grad": 0.0,
        "eval-iters": 1 if config.train.eval_interval else 0,
        # Upstream has no value for "never", so the first evaluation would come after the last step.
        "eval-interval": config.train.eval_interval or config.train.steps + 1,
        "log-interval": log_interval(config),
    }
