"""Rules of multi-token prediction."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.cell.stages import PREDICTION
from harness.matrix.rules.rule import Rule


def mtp_reads_tokens(config: CellConfig) -> str | None:
    mtp, layout, path = config.model.mtp, config.layout, config.path
    if mtp is None:
        return None
    where, reads = "the last stage", path.tokens_on_last_stage
    if mtp.stage is not None:
        where, reads = f"stage {mtp.stage}", path.predicts_on_any_stage
    elif layout.prediction_stage != layout.pp - 1:
        where, reads = f"stage {layout.prediction_stage}", path.predicts_by_stages
    return None if reads else f"multi-token prediction needs tokens on {where}, and packing {path.name} passes none"


def mtp_has_stage(config: CellConfig) -> str | None:
    mtp, layout = config.model.mtp, config.layout
    if mtp is None or mtp.stage is None:
        return None
    if mtp.stage >= layout.pp:
        return f"model.mtp.stage is {mtp.stage}, and pp {layout.pp} has stages 0 to {layout.pp - 1}"
    if layout.stages and mtp.stage != layout.prediction_stage:
        return f"model.mtp.stage is {mtp.stage}, and stages has {PREDICTION} on stage {layout.prediction_stage}"
    if config.train.steps:
        return (
            f"model.mtp.stage is {mtp.stage}, which only says where batches are fetched, with train.steps 0; to train "
            f"with prediction layers there, write {PREDICTION} into stages"
        )
    return None


PREDICTION_RULES: tuple[Rule, ...] = (
    Rule("mtp.tokens", "harness: which data paths pass tokens to the stage of prediction layers", mtp_reads_tokens),
    Rule("mtp.stage", "harness: a stage for batches alone; Megatron-LM places layers by its layout", mtp_has_stage),
)
