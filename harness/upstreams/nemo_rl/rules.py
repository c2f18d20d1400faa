"""Rules of NeMo-RL's loss."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.matrix.rules.packing import with_option
from harness.matrix.rules.rule import Rule


def loss_has_switch(config: CellConfig) -> str | None:
    if not config.options.fuse_loss or "fuse_loss" in config.path.options:
        return None
    return f"fuse_loss is set, and packing is {config.data_path}: only {with_option('fuse_loss')} has this switch"


NEMO_RL_RULES: tuple[Rule, ...] = (Rule("packing.nemo-rl-switch", "harness: fuse_loss is NeMo-RL's", loss_has_switch),)
