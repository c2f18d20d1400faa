"""Which cells the oracle models, as far as their configuration says; harness/oracle/fields.py has upstream's fields.

Ranks ask it before they compute, and whoever plans a control: one with which no cell is compared trains once.
"""

from __future__ import annotations

from harness.core.cell.axis_values import BUILT_IN_TRAINERS
from harness.core.cell.config import CellConfig
from harness.core.layer_pattern import MAMBA
from harness.core.packing.arithmetic import MicroBatch

# On one core float64 matrices are multiplied at 5 to 20 GFLOP/s: half a minute to two.
_MOST_FLOPS = 5e11
_MOST_BYTES = 4 * 2**30


def not_modelled_in(config: CellConfig) -> str:
    """What of a cell the oracle does not model, or that it is too large; empty if it may compute all."""
    model = config.model
    wanted = (
        ("dtype", _rounds_choices(config) and f"{config.dtype} with a capacity of experts, or a resume"),
        ("dtype", config.dtype != "fp32" and MAMBA in model.pattern and f"{config.dtype} with Mamba"),
        ("trainer", config.trainer not in BUILT_IN_TRAINERS and config.trainer),  # it may divide the loss otherwise
        ("model.builder", model.builder),
        ("model.pattern", model.pattern and model.mtp is not None and f"{model.pattern} with prediction layers"),
        ("model.vision", model.vision is not None and "images"),
        ("resume", config.saved_in is not None and config.by_rows and "rows of two layouts"),
    )
    return ", ".join(f"{name} {value}" for name, value in wanted if value) or _too_large(config)


def follows_choices(config: CellConfig) -> bool:
    """Whether ranks record what routers chose, and the oracle follows: rounding decides near ties."""
    return _has_choices(config) and not not_modelled_in(config)


def _has_choices(config: CellConfig) -> bool:
    """Whether each slot has as many experts as its router chose: with a capacity some are dropped."""
    return config.model.moe is not None and config.model.moe.capacity_factor is None


def _rounds_choices(config: CellConfig) -> bool:
    """Whether rounding decides many choices, and no record holds them all: of dropped tokens, or of another part."""
    parts = bool(config.resume) or config.saved_in is not None
    return config.dtype != "fp32" and config.model.moe is not None and (not _has_choices(config) or parts)


def _too_large(config: CellConfig) -> str:
    """Estimated: 6 operations per weight and token (arXiv 2001.08361), those of attention, the scores kept of it."""
    model, plans = config.model, [plan for replica in config.micro_batches(0) for plan in replica]
    tokens, squares = sum(plan.slots for plan in plans), max(map(_squares, plans), default=0)
    feed_forward = 3 * model.hidden * model.ffn * (model.moe.topk if model.moe else 1)
    weights = model.layers * (4 * model.hidden**2 + feed_forward) + 2 * model.vocab * model.hidden
    flops = 2 * config.train.steps * (6 * weights * tokens + 12 * model.layers * model.hidden * squares)
    size = 8 * (3 * model.layers * model.heads * squares + 5 * weights)
    if flops <= _MOST_FLOPS and size <= _MOST_BYTES:
        return ""
    return (
        f"size: about {flops:.1g} operations and {size / 2**30:.2g} GiB of memory, more than {_MOST_FLOPS:.0e} or "
        f"{_MOST_BYTES >> 30}"
    )


def _squares(plan: MicroBatch) -> int:
    """Attention scores of one head: the squares of what attends to each other."""
    sizes = [padded for _, padded in plan.segments] if plan.style.packed else [row.length for row in plan.rows]
    return sum(size * size for size in sizes)
