"""Rules of adapters."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.matrix.rules.rule import Rule, not_divisible


def rank_by_tp(config: CellConfig) -> str | None:
    """An adapter of a column parallel layer splits its rank over tp."""
    peft, layout = config.model.peft, config.layout
    if peft is None:
        return None
    tp = max(layout.tp, layout.expert_tp if config.model.moe else 1)
    return not_divisible("model.peft.rank", peft.rank, f"tp {tp}", tp)


def adapters_without_other_parts(config: CellConfig) -> str | None:
    model = config.model
    if model.peft is None or not (model.pattern or model.mtp):
        return None
    return f"model.peft with model.{'pattern' if model.pattern else 'mtp'}: the harness does not adapt such layers"


def adapted_layers_exist(config: CellConfig) -> str | None:
    """Latent attention projects queries, keys and values by other layers, which the harness does not adapt."""
    model = config.model
    if model.peft is None or model.mla is None:
        return None
    return "model.peft with model.mla: latent attention has no linear_qkv"


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule("peft.rank-by-tp", "Megatron-LM ColumnParallelLinear: its output size % TP == 0", rank_by_tp),
    Rule("peft.parts", "harness: adapters on decoder layers of GPTModel", adapters_without_other_parts),
    Rule(
        "peft.latent-attention",
        "harness: adapts linear_qkv, which Megatron-LM's MLASelfAttention lacks; Megatron-Bridge adapts its other "
        "projections too",
        adapted_layers_exist,
    ),
)
