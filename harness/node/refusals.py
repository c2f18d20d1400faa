"""Why this node cannot run a cell, checked before the cell starts; complements the rules of the plan.

A limit of the release, or arithmetic, rejects the cell. Software that is missing on the node, or whose import fails, is
an ERROR: a broken image must not look like a rule, nor a name that a checkout does not have.
"""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.hardware import placed_rank, unplaced
from harness.core.outcomes import Missing, Rejection
from harness.node.data_paths.packed_fields import unavailable_fields
from harness.node.data_paths.table import ADAPTERS
from harness.node.device.cuda_forks import forks_protected, gpu_table
from harness.node.probe.model import attention_kinds, gpt, rotary
from harness.node.probe.model import parts as model_parts
from harness.node.probe.model.bridge.adapters import unavailable_adapters
from harness.node.probe.model.bridge.vision import unavailable_vision
from harness.node.probe.model.hybrid import missing_kernels, missing_package
from harness.node.trainers.table import TRAINERS


def refusal(config: CellConfig, ranks_here: int) -> Rejection | Missing | None:
    """The first reason why the cell cannot run here with `ranks_here` ranks on this node; None when it can."""
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
    if unsupported := model_parts.unsupported_parts(config):
        return unsupported
    if lacking := missing_package(config):
        return Missing(reason=lacking)
    if refused := gpt.unsupported_fields(config):
        return refused
    table = gpu_table()
    if refused := unplaced(config, len(table), ranks_here):
        return refused
    device = placed_rank(config.device, len(table), 0, ranks_here)
    if reason := rotary.unsupported_kernel(config, device.kind):
        if config.device == "cpu":
            return Rejection(rule="kernels.rope-fusion", reason=reason, source="Megatron-LM apply_rotary_pos_emb")
        return Missing(reason=reason)
    if device.kind == "cuda" and (lacking := missing_kernels(config)):
        return Missing(reason=lacking)
    return attention_kinds.unsupported_attention(config, device, table[0].capability if table else None)
