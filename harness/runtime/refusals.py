"""Why this node cannot run a cell, checked before the cell starts; complements the rules of the plan.

A limit of the release, or arithmetic, rejects the cell. Software that is missing on the node, or whose import fails, is
an ERROR: a broken image must not look like a rule, nor a name that a checkout does not have.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.hardware import placed_rank, unplaced
from harness.core.outcomes import Missing, Rejection
from harness.core.packing.fields import ALWAYS_READ
from harness.features.adapters.node_adapters import unavailable_adapters
from harness.features.attention import node_kinds, node_rotary
from harness.features.experts import node_grouped
from harness.features.hybrid.node_model import missing_kernels, missing_package
from harness.features.vision.node_model import unavailable_vision
from harness.probe.model import gpt
from harness.probe.model import parts as model_parts
from harness.runtime.device.cuda_forks import forks_protected, gpu_table
from harness.upstreams.node_data_paths import ADAPTERS
from harness.upstreams.node_lookup import Unavailable, not_in_release, release, takes
from harness.upstreams.node_trainers import TRAINERS

_MODULE = "megatron.core.packed_seq_params"
ARGUMENT = "packed_seq_params"
_TRAINED = ("input_ids", "position_ids", "labels", "loss_mask")  # read of the calls that upstream's trainers make
# Field that the harness sets -> the first release with it. Commits before it have its version too, and may lack it.
_SET = {"total_tokens": (0, 17), "tokens_per_sample": (0, 19), "pad_between_seqs": (0, 19)}


# The names by which upstream hands a batch on: arguments of the model's forward, and the fields of packed params that
# the harness reads of every packed batch, or sets itself on `reference`.
def unavailable_fields(config: CellConfig) -> Unavailable:
    """Return which name that a cell needs is absent: an argument of the model, or a field of packed params.

    None when none is.
    """
    gpt: Any = importlib.import_module("megatron.core.models.gpt.gpt_model")
    for name in (ARGUMENT, *(() if config.trained_by_harness else _TRAINED)):
        if not takes(gpt.GPTModel.forward, name):
            reason = f"{release('megatron.core')} has no argument {name} of GPTModel.forward"
            return not_in_release(reason, "megatron.core")
    if not config.path.packs:
        return None
    upstream: Any = importlib.import_module(_MODULE)
    version = importlib.import_module("megatron.core.package_info")
    here = (int(version.MAJOR), int(version.MINOR))
    # A commit of main carries the number of the next release long before that is complete, so only a later one must
    # have the field.
    needed = [*ALWAYS_READ, *(name for name, first in _SET.items() if config.data_path == "reference" and here > first)]
    fields = {field.name for field in dataclasses.fields(upstream.PackedSeqParams)}
    absent = [f"{_MODULE}.PackedSeqParams.{name}" for name in needed if name not in fields]
    return not_in_release(f"{release('megatron.core')} has no {', '.join(absent)}", "megatron.core") if absent else None


def refusal(config: CellConfig, ranks_here: int) -> Rejection | Missing | None:
    """Return the first reason why the cell cannot run here with `ranks_here` ranks on this node; None when it can."""
    with forks_protected(f"importing data path {config.data_path}"):
        adapter = ADAPTERS.get(config.data_path)  # none for data that only a trainer reads
        unavailable = adapter.unavailable(config) if adapter else None
        if not unavailable and config.trainer in TRAINERS:
            unavailable = TRAINERS[config.trainer].unavailable(config)
        unavailable = unavailable or unavailable_fields(config)
        unavailable = unavailable or unavailable_adapters(config.model.peft)
        unavailable = unavailable or unavailable_vision(config)
    if unavailable:
        return unavailable
    # In the order of blame: what the release lacks, then what the environment lacks, then what this node's hardware
    # lacks.
    if unsupported := model_parts.unsupported_parts(config):
        return unsupported
    if lacking := missing_package(config):
        return Missing(reason=lacking)
    if refused := gpt.unsupported_fields(config):
        return refused
    table = gpu_table()
    if refused := unplaced(config, len(table), ranks_here):
        return refused
    # The kind is the same for all ranks of a node; local rank 0 stands for them.
    device = placed_rank(config.device, len(table), 0, ranks_here)
    if reason := node_rotary.unsupported_kernel(config, device.kind):
        if config.device == "cpu":
            return Rejection(rule="kernels.rope-fusion", reason=reason, source="Megatron-LM apply_rotary_pos_emb")
        return Missing(reason=reason)
    if reason := node_grouped.unsupported_kernel(config, device.kind):
        return Missing(reason=reason)
    if device.kind == "cuda" and (lacking := missing_kernels(config)):
        return Missing(reason=lacking)
    return node_kinds.unsupported_attention(config, device, table[0].capability if table else None)
