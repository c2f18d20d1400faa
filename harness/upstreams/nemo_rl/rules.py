"""Rules of NeMo-RL's loss."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.matrix.rules.packing import with_option
from harness.matrix.rules.rule import Rule
from harness.upstreams.nemo_rl.spec import NEMO_RL


def loss_has_switch(config: CellConfig) -> str | None:
    if not config.options.fuse_loss or "fuse_loss" in config.path.options:
        return None
    return f"fuse_loss is set, and packing is {config.data_path}: only {with_option('fuse_loss')} has this switch"


def loss_is_per_token(config: CellConfig) -> str | None:
    if config.path is not NEMO_RL or config.options.calculate_per_token_loss:
        return None
    return "calculate_per_token_loss is false, and NeMo-RL sets it to true; its loss is the mean over a step's tokens"


NEMO_RL_RULES: tuple[Rule, ...] = (
    Rule("packing.nemo-rl-switch", "harness: fuse_loss is NeMo-RL's", loss_has_switch),
    Rule(
        "loss.nemo-rl-means",
        "NeMo-RL _validate_training_config: model_cfg.calculate_per_token_loss = True",
        loss_is_per_token,
    ),
)
