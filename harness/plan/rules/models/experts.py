"""Rules of routers and experts that go beyond their sizes: shared experts, biases, capacity."""

from __future__ import annotations

from harness.plan.rules.rule import Rule, Shape, not_divisible


def shared_ffn_by_tp(config: Shape) -> str | None:
    moe, tp = config.model.moe, config.layout.tp
    return not_divisible("model.moe.shared_ffn", moe.shared_ffn, f"tp {tp}", tp) if moe and moe.shared_ffn else None


def bias_needs_sigmoid(config: Shape) -> str | None:
    moe = config.model.moe
    if not moe or not moe.expert_bias or moe.score_function == "sigmoid":
        return None
    return f"model.moe.expert_bias is true and score_function is {moe.score_function}; set score_function: sigmoid"


def padding_needs_capacity(config: Shape) -> str | None:
    moe = config.model.moe
    if not moe or not moe.pad_to_capacity or moe.capacity_factor is not None:
        return None
    return "model.moe.pad_to_capacity is true without a capacity_factor"


def dropping_by_rank(config: Shape) -> str | None:
    """Which tokens are dropped depends on the tokens of the rank, so a control must have the same ones."""
    layout, moe = config.layout, config.model.moe
    if not moe or not moe.drops:
        return None
    enough = f"capacity_factor {moe.experts / moe.topk:g} or more drops nothing"
    if layout.tp * layout.cp > 1:
        return (
            f"a rank of tp {layout.tp} x cp {layout.cp} drops tokens by its own part of a row, and other tokens than "
            f"one rank that has the whole row; {enough}"
        )
    if config.path.own:
        return None
    return (
        f"rows of packing {config.data_path} are not those of its control, so experts drop other tokens; {enough}, and "
        "packing reference has a control with the same rows"
    )


RULES: tuple[Rule[Shape], ...] = (
    Rule(
        "moe.shared-ffn-by-tp",
        "Megatron-LM SharedExpertMLP: its layers are split over TP",
        shared_ffn_by_tp,
        part="moe",
    ),
    Rule(
        "moe.bias-needs-sigmoid",
        "Megatron-LM TransformerConfig: expert bias for aux-loss-free routing only supports sigmoid scores",
        bias_needs_sigmoid,
        part="moe",
    ),
    Rule(
        "moe.padding-needs-capacity",
        "Megatron-LM TransformerConfig: moe_expert_capacity_factor must be set to pad to it",
        padding_needs_capacity,
        part="moe",
    ),
    Rule(
        "moe.dropping",
        "Megatron-LM apply_router_token_dropping: the capacity is of num_tokens, those of the rank",
        dropping_by_rank,
        part="moe",
    ),
)
