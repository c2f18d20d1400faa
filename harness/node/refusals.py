"""Why this node cannot run a cell, asked before it starts: the agent's last look, beside the rules of the plan.

A fact, of the release or by arithmetic, rejects the cell. What is missing on the node, or fails when it is imported, is
an ERROR: a broken image must not look like a rule.
"""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.hardware.devices import place, unplaced
from harness.core.outcomes import Missing, Rejection
from harness.node.data_paths.table import ADAPTERS
from harness.node.device.cuda_forks import forks_kept, gpu_table
from harness.node.probe.model import attention_kinds, gpt, kernels
from harness.node.probe.model import parts as model_parts

_STACK = "the stack under test"


def refusal(config: CellConfig, ranks_here: int) -> Rejection | Missing | None:
    """The first thing that the stack or the node lacks for a cell with so many ranks on this node; None: it can run."""
    with forks_kept(f"asking for data path {config.data_path}"):  # which imports it
        lack = ADAPTERS[config.data_path].unavailable(config)
    if lack:
        return lack
    if reason := model_parts.lacking(config):
        return Rejection(rule="stack.model", reason=reason, source=_STACK)
    if refused := gpt.lacking(config):
        return refused
    table = gpu_table()
    there = len(table)
    if refused := unplaced(config, there, ranks_here):
        return refused
    found = place(config.device, there, 0, ranks_here)
    if reason := kernels.lacking(config, found.kind):
        if config.device == "cpu":
            return Rejection(rule="kernels.rope-fusion", reason=reason, source="Megatron-LM apply_rotary_pos_emb")
        return Missing(reason=reason)
    return attention_kinds.lacking(config, found, table[0].capability if table else None)
