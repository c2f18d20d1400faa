"""Rules of recomputation."""

from __future__ import annotations

from harness.core.cell.axis_values import SPLIT
from harness.core.cell.config import CellConfig
from harness.matrix.rules.rule import Rule


def split_needs_whole_activations(config: CellConfig) -> str | None:
    layout = config.layout
    if config.recompute != SPLIT or (layout.tp > 1 and not layout.sp):
        return None
    base = f"recompute {SPLIT} splits the saved input of a layer over tp"
    if layout.tp == 1:
        return f"{base}, and tp is 1; use recompute: full"
    return f"{base} {layout.tp}, and with sp it is split already; use recompute: full, or sp: false"


RECOMPUTE_RULES: tuple[Rule, ...] = (
    Rule(
        "recompute.split",
        "Megatron-LM TransformerConfig: distribute_saved_activations without sequence_parallel",
        split_needs_whole_activations,
    ),
)
