"""Which cells the oracle models, as far as their configuration says; harness/oracle/fields.py has upstream's fields.

Ranks ask it before they compute, and whoever plans a control: one with which no cell is compared trains once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.core.cell.axis_values import BUILT_IN_TRAINERS
from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import MicroBatch
from harness.features.vision.config import MERGE, VisionConfig

# On one core float64 matrices are multiplied at 5 to 20 GFLOP/s: half a minute to two.
_MAX_FLOPS = 5e11
_MAX_BYTES = 4 * 2**30


def not_modelled_in(config: CellConfig) -> str:
    """Return what of a cell the oracle does not model, or that it is too large; empty if it may compute all."""
    model = config.model
    wanted = (
        ("trainer", config.trainer not in BUILT_IN_TRAINERS and config.trainer),  # it may divide the loss otherwise
        ("model.builder", model.builder),
        ("model.pattern", model.pattern and model.mtp is not None and f"{model.pattern} with prediction layers"),
        ("resume", _other_before(config) and "after other micro-batches"),
    )
    return ", ".join(f"{name} {value}" for name, value in wanted if value) or _too_large(config)


def follows_choices(config: CellConfig) -> bool:
    """Return whether ranks record what routers chose, and the oracle follows: rounding decides near ties."""
    return config.model.moe is not None and not not_modelled_in(config)


def _other_before(config: CellConfig) -> bool:
    """Return whether the part that saved the checkpoint had other micro-batches, or dropped other tokens, and it
    matters.
    """
    if config.saved_in is None or config.saved_in == config.layout:
        return False
    moe = config.model.moe
    if moe is not None and moe.capacity_factor is not None:
        return True
    follows = moe is not None and config.dtype != "fp32"  # rounding decides many choices
    return (config.by_rows or follows) and not same_micro_batches(config)


def same_micro_batches(config: CellConfig) -> bool:
    """Return whether the part that saved the checkpoint of this one had its micro-batches."""
    saved = config.saved_in or config.layout
    return saved == config.layout or (saved.dp == config.layout.dp and not config.packed_later)


def _too_large(config: CellConfig) -> str:
    """Estimated: 6 operations per weight and token (arXiv 2001.08361), those of attention, the scores kept of it."""
    model, plans = config.model, [plan for replica in config.micro_batches(0) for plan in replica]
    tokens, squares = sum(plan.slots for plan in plans), max(map(_squares, plans), default=0)
    feed_forward = 3 * model.hidden * model.ffn * (model.moe.topk if model.moe else 1)
    weights = model.layers * (4 * model.hidden**2 + feed_forward) + 2 * model.vocab * model.hidden
    operations = 6 * weights * tokens + 12 * model.layers * model.hidden * squares
    scores = model.layers * model.heads * squares
    if model.vision:
        more = _of_tower(model.vision, model.hidden, plans)
        operations, scores, weights = operations + more[0], scores + more[1], weights + more[2]
    flops = 2 * config.train.steps * operations
    size = 8 * (3 * scores + 16 * weights)  # of two trainings, and `both_ways`
    if flops <= _MAX_FLOPS and size <= _MAX_BYTES:
        return ""
    return (
        f"size: about {flops:.1g} operations and {size / 2**30:.2g} GiB of memory, more than {_MAX_FLOPS:.0e} or "
        f"{_MAX_BYTES >> 30}"
    )


def _of_tower(vision: VisionConfig, out: int, plans: Sequence[MicroBatch]) -> tuple[int, int, int]:
    """Operations, attention scores and weights of an image tower; its mergers see a block of patches at once."""
    grids = [[math.prod(image.grid) for item in plan.placed for image in item.document.images] for plan in plans]
    patches = sum(map(sum, grids))
    squares = max((sum(size * size for size in sizes) for sizes in grids), default=0)
    block, layers = MERGE**2, vision.layers * (4 * vision.hidden**2 + 2 * vision.hidden * vision.ffn)
    mergers = (1 + vision.deepstack) * block * vision.hidden * (block * vision.hidden + out)
    operations = 6 * (layers * patches + mergers * patches // block) + 12 * vision.layers * vision.hidden * squares
    return operations, vision.layers * vision.heads * squares, layers + mergers


def _squares(plan: MicroBatch) -> int:
    """Attention scores of one head: the squares of what attends to each other."""
    sizes = [padded for _, padded in plan.segments] if plan.style.packed else [row.length for row in plan.rows]
    return sum(size * size for size in sizes)
