"""Rules of loss and gradient normalisation."""

from __future__ import annotations

from harness.plan.rules.rule import Rule
from harness.words.cell import CellConfig

_BRIDGE = "Megatron-Bridge ConfigContainer.validate: fine-tuning with CP > 1"


def per_token_loss_with_cp(config: CellConfig) -> str | None:
    cp = config.layout.cp
    if cp == 1 or config.options.calculate_per_token_loss:
        return None
    return (
        f"cp {cp} splits each document over {cp} ranks, and calculate_per_token_loss is false: "
        "a rank whose tokens are all masked would divide by 0 tokens"
    )


def no_average_with_cp(config: CellConfig) -> str | None:
    cp = config.layout.cp
    if cp == 1 or not config.options.average_in_collective:
        return None
    return (
        f"cp {cp} with average_in_collective would average over cp {cp} x dp {config.layout.dp} ranks of unequal tokens"
    )


def no_average_with_per_token_loss(config: CellConfig) -> str | None:
    if not (config.options.average_in_collective and config.options.calculate_per_token_loss):
        return None
    return "calculate_per_token_loss divides by the tokens of all ranks; average_in_collective would divide again"


def per_token_loss_only(config: CellConfig) -> str | None:
    if config.options.calculate_per_token_loss:
        return None
    return "calculate_per_token_loss is false, and the probe of this version sums the loss over tokens only"


RULES = (
    Rule("loss.per-token-with-cp", _BRIDGE, per_token_loss_with_cp),
    Rule("loss.no-average-with-cp", _BRIDGE, no_average_with_cp),
    Rule(
        "loss.no-average-with-per-token",
        "Megatron-LM DistributedDataParallel: cannot average in collective with per-token loss",
        no_average_with_per_token_loss,
    ),
    Rule("loss.per-token-only", "harness: packed and unpacked losses compare per token only", per_token_loss_only),
)
