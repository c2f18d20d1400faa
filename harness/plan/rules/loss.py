"""Rules of loss and gradient normalisation."""

from __future__ import annotations

from harness.core.packing.arithmetic import PAD
from harness.plan.rules.rule import Rule, Shape

_BRIDGE = "Megatron-Bridge ConfigContainer.validate: fine-tuning with CP > 1"


def per_token_loss_with_cp(config: Shape) -> str | None:
    cp = config.layout.cp
    if cp == 1 or config.options.calculate_per_token_loss or config.path.step_mean:
        return None
    base = f"cp {cp} splits each document over {cp} ranks, and calculate_per_token_loss is false"
    if not config.path.own:
        return f"{base}: a rank whose tokens are all masked would divide by 0 tokens"
    found = _uneven(config)
    if found is None:
        return None
    step, micro_batch, shares = found
    return (
        f"{base}: in step {step}, micro-batch {micro_batch}, the ranks have {', '.join(map(str, shares))} unmasked "
        "tokens, and each divides by its own count"
    )


def _uneven(config: Shape) -> tuple[int, int, list[int]] | None:
    """(step, micro-batch, unmasked tokens per cp rank) of the first micro-batch with unequal counts over cp.

    None also where rows cannot be made or split over cp, which other rules reject.
    """
    cp = config.layout.cp
    for step in range(config.train.steps):
        try:
            batches = [batch for replica in config.micro_batches(step) for batch in replica]
            slots = [[batch.local_slots(cp, rank) for rank in range(cp)] for batch in batches]
        except ValueError:
            return None
        for number, (batch, ranks) in enumerate(zip(batches, slots)):
            masks = {item.document.index: item.document.loss_mask for item in batch.placed}
            counts = [owner != PAD and masks[owner][position] for owner, position in batch.slot_owners()]
            shares = [sum(counts[slot] for row in rows for slot in row) for rows in ranks]
            if len(set(shares)) > 1:
                return step, number, shares
    return None


def no_average_with_cp(config: Shape) -> str | None:
    cp = config.layout.cp
    if cp == 1 or not config.options.average_in_collective:
        return None
    return (
        f"cp {cp} with average_in_collective would average over cp {cp} x dp {config.layout.dp} ranks with unequal "
        "numbers of tokens"
    )


def no_average_with_per_token_loss(config: Shape) -> str | None:
    if not (config.options.average_in_collective and config.options.calculate_per_token_loss):
        return None
    return "calculate_per_token_loss divides by the tokens of all ranks; average_in_collective would divide again"


def per_token_loss_only(config: Shape) -> str | None:
    if config.options.calculate_per_token_loss or config.path.step_mean or config.path.own:
        return None
    return (
        "calculate_per_token_loss is false, so gradients are comparable between equal rows only, and no control has "
        f"the rows of packing {config.data_path}"
    )


def smoothing_without_other_heads(config: Shape) -> str | None:
    if not config.train.label_smoothing or config.model.mtp is None:
        return None
    return (
        f"train.label_smoothing {config.train.label_smoothing:g} computes the loss outside the model, which then gets "
        "no labels, and multi-token prediction needs them"
    )


def smoothing_of_shards(config: Shape) -> str | None:
    if not config.train.label_smoothing or not config.model.gathered_logits:
        return None
    return "train.label_smoothing takes logits split over tp, and model.gathered_logits gathers them"


RULES: tuple[Rule[Shape], ...] = (
    Rule("loss.per-token-with-cp", _BRIDGE, per_token_loss_with_cp),
    Rule("loss.no-average-with-cp", _BRIDGE, no_average_with_cp),
    Rule(
        "loss.no-average-with-per-token",
        "Megatron-LM DistributedDataParallel: cannot average in collective with per-token loss",
        no_average_with_per_token_loss,
    ),
    Rule(
        "loss.per-token-only", "harness: packed and unpacked losses are comparable only per token", per_token_loss_only
    ),
    Rule(
        "loss.smoothing-mtp",
        "Megatron-LM GPTModel._postprocess: prediction layers need labels",
        smoothing_without_other_heads,
    ),
    Rule(
        "loss.smoothing-shards",
        "Megatron-LM vocab_parallel_cross_entropy: logits split across tensor-parallel ranks",
        smoothing_of_shards,
    ),
)
