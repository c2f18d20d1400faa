"""`sft` with a Megatron-LM checkout first on sys.path: the checkout's pretrain_gpt.forward_step and get_batch.

The probe trains with forward_step as it is. To fetch a batch without the model, it is called with a stub that records
its arguments. All code between the iterator and the loss is thus upstream's, in any checkout from core_v0.16.1 to main
of 2026-08. Besides the iterator, checkouts need some of these:

| needed | provided |
|---|---|
| get_args(), and core_transformer_config_from_args | upstream's own parse_args and validate_args |
| get_timers() | upstream's Timers |
| vp_stage of the model | the chunk, None without interleaving |
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Missing
from harness.core.upstream import why_unsupported
from harness.upstreams.builtin.node_stub import ModelStub
from harness.upstreams.node_base import Batch, RankContext, batch_given, mask_and_loss
from harness.upstreams.node_lookup import Unavailable, checked_out, module_unavailable, not_in_release, release


def find() -> Path | None:
    """Return the checkout that megatron.core was imported from, whatever it holds.

    None when it is an installed package.
    """
    return checked_out("megatron.core")


def script(config: CellConfig) -> str:
    """Return the name of the script that trains the cell's model."""
    return "pretrain_hybrid" if config.model.hybrid else "pretrain_gpt"


def _imported(config: CellConfig) -> Any:
    """Return the script as a module."""
    if config.model.hybrid:
        return importlib.import_module("pretrain_hybrid")
    return importlib.import_module("pretrain_gpt")


def no_script(config: CellConfig) -> Unavailable:
    """Return why no script can train the cell's model: the checkout is too old, or does not have it.

    None if one can.
    """
    root, name = find(), f"{script(config)}.py"
    # Before 0.17 the script's tokenizer refuses the harness's arguments; before 0.16 forward_step packs no rows.
    whole = config.trainer == "megatron"
    first = ("trainer: megatron", (0, 17)) if whole else ("packing: sft", (0, 16))
    if root is not None and (too_old := why_unsupported(root / "megatron" / "core", *first)):
        return not_in_release(too_old, "megatron.core")
    if root is not None and (root / name).is_file():
        return None
    where = ", which only a checkout has" if root is None else ""
    return not_in_release(f"{release('megatron.core')} has no {name}{where}", "megatron.core")


def unavailable(config: CellConfig) -> Unavailable:
    """Return why the checkout's script cannot be used; None when it can. Imports it."""
    root, name = find(), script(config)
    if missing := no_script(config):
        return missing
    try:
        module = _imported(config)
    except Exception as error:
        return Missing(reason=f"{root}/{name}.py cannot be imported: {type(error).__name__}: {error}")
    folder = Path(str(module.__file__)).resolve().parent
    # sys.path may hold two checkouts; the script of one with the core of another would test neither.
    if folder == root:
        return module_unavailable(name, "megatron.core", "forward_step")
    return Missing(reason=f"{name} comes from {folder}, but megatron.core from {root}; check PYTHONPATH")


class Checkout:
    """Serves one rank."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.upstream: Any = _imported(context.config)
        set_arguments(context.config)

    def batch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        model = _Called(chunk if self.context.config.layout.vpp > 1 else None)
        with model.called_by(f"{script(self.context.config)}.forward_step"):
            _, mask, loss = self.forward_step(iterator, model)
        return replace(batch_given(model.given), loss_mask=mask, loss=loss)

    def forward_step(self, iterator: Iterator[Any] | None, model: Any) -> tuple[Tensor, Tensor, Any]:
        """Run the script's forward step, as Adapter says."""
        output, loss = self.upstream.forward_step(iterator, model)
        return output, *mask_and_loss(loss)


class _Called(ModelStub):
    """A stub of the model that records the arguments of forward_step; its signature is that of GPTModel.forward."""

    def __init__(self, vp_stage: int | None) -> None:
        self.vp_stage = vp_stage
        self.given: dict[str, Any] = {}

    def __call__(self, input_ids: Any, position_ids: Any, attention_mask: Any, **others: Any) -> Tensor:
        named = {"input_ids": input_ids, "position_ids": position_ids, "attention_mask": attention_mask}
        self.given = {**named, **others}
        return torch.empty(0)


def set_arguments(config: CellConfig, switches: Sequence[str] = ()) -> None:
    """Set upstream's global arguments for the cell, parsed and validated by upstream, and its timers.

    `switches`: more flags without a value.
    """
    arguments: Any = importlib.import_module("megatron.training.arguments")
    variables: Any = importlib.import_module("megatron.training.global_vars")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # required by validate_args with tp or cp
    with command_line(model_flags(config, {}) + [f"--{name}" for name in switches]), redirect_stdout(sys.stderr):
        args = arguments.parse_args()
        arguments.validate_args(args, {})
    variables.set_args(args)
    if getattr(variables, "_GLOBAL_TIMERS", None) is None:
        variables._set_timers(args)  # the public way, set_global_variables, needs a tokenizer


@contextmanager
def command_line(flags: list[str]) -> Iterator[None]:
    """Set sys.argv, which upstream's parse_args reads."""
    original = sys.argv
    sys.argv = ["pretrain_gpt.py", *flags]
    try:
        yield
    finally:
        sys.argv = original


# GELU is upstream's default; with biases it would fuse it, and then approximates it by tanh.
_ACTIVATIONS = {
    "swiglu": ("swiglu",),
    "gelu": ("no-bias-gelu-fusion",),
    "squared_relu": ("squared-relu", "no-bias-gelu-fusion"),
    "quick_geglu": ("quick-geglu", "no-bias-gelu-fusion"),
}


def model_flags(config: CellConfig, others: Mapping[str, Any]) -> list[str]:
    """Return the cell as pretrain_gpt.py's command line, with only those model options that validate_args needs.

    `others`: values of more flags; they win.
    """
    model, train, layout = config.model, config.train, config.layout
    values: dict[str, Any] = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "num-attention-heads": model.heads,
        "num-query-groups": model.kv_heads,
        "kv-channels": model.head,
        "ffn-hidden-size": model.ffn,
        "vocab-size": model.vocab,
        "seq-length": train.seq_length,
        "max-position-embeddings": train.seq_length,
        "micro-batch-size": config.micro_batch_size,
        "global-batch-size": config.micro_batch_size * layout.dp,
        "train-iters": train.steps,
        "lr": train.lr,
        "seed": train.seed,
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
        "position-embedding-type": model.position_embedding,
        "transformer-impl": "local",
        "tokenizer-type": "NullTokenizer",
    }
    # Hybrid models take virtual stages from the cuts of their pattern, others from those of `stages`.
    if layout.vpp > 1 and not model.hybrid and not layout.stages:
        values["num-virtual-stages-per-pipeline-rank"] = layout.vpp
    stages = {
        "decoder-first-pipeline-num-layers": layout.first_stage_layers,
        "decoder-last-pipeline-num-layers": layout.last_stage_layers,
        "pipeline-model-parallel-layout": layout.stages,
    }
    values |= {name: value for name, value in stages.items() if value is not None}
    if model.mtp:  # get_batch then gives the last stage tokens
        values |= {"mtp-num-layers": model.mtp.layers, "mtp-loss-scaling-factor": model.mtp.loss_factor}
    switches = ["group-query-attention", "use-cpu-initialization", *_ACTIVATIONS[model.activation]]
    switches += ["sft"] if config.path.sft_flag else []
    switches += ["calculate-per-token-loss"] if config.options.calculate_per_token_loss else []
    switches += ["no-create-attention-mask-in-dataloader", "no-persist-layer-norm", "no-rope-fusion"]
    switches += ["no-masked-softmax-fusion", "no-gradient-accumulation-fusion"]
    switches += ["sequence-parallel"] if layout.sp else []
    switches += ["bf16"] if config.dtype == "bf16" else []
    switches += ["use-tp-pp-dp-mapping"] if layout.pp_before_dp else []
    switches += ["account-for-embedding-in-pipeline-split"] if layout.embedding_as_layer else []
    switches += ["account-for-loss-in-pipeline-split"] if layout.loss_as_layer else []
    values |= others
    return [f"--{name}={value}" for name, value in values.items()] + [f"--{name}" for name in switches]
