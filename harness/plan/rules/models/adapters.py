"""Rules of models with adapters."""

from __future__ import annotations

from harness.plan.rules.rule import Rule, Shape, not_divisible


def rank_by_tp(config: Shape) -> str | None:
    """An adapter of a column parallel layer splits its rank over tp."""
    peft, layout = config.model.peft, config.layout
    if peft is None:
        return None
    tp = max(layout.tp, layout.expert_tp if config.model.moe else 1)
    return not_divisible("model.peft.rank", peft.rank, f"tp {tp}", tp)


def no_other_parts(config: Shape) -> str | None:
    model = config.model
    if model.peft is None or not (model.pattern or model.mtp):
        return None
    return f"model.peft with model.{'pattern' if model.pattern else 'mtp'}: the harness does not adapt such layers"


def adapted_layers_exist(config: Shape) -> str | None:
    """Latent attention projects queries, keys and values by other layers, which the harness does not adapt."""
    model = config.model
    if model.peft is None or model.mla is None:
        return None
    return "model.peft with model.mla: latent attention has no linear_qkv"


RULES: tuple[Rule[Shape], ...] = (
    Rule("peft.rank-by-tp", "Megatron-LM ColumnParallelLinear: its output size % TP == 0", rank_by_tp, part="peft"),
    Rule("peft.parts", "harness: adapters on decoder layers of GPTModel", no_other_parts, part="peft"),
    Rule("peft.latent-attention", "Megatron-LM MLASelfAttention", adapted_layers_exist, part="peft"),
)
