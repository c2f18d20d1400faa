"""Rules of multi-token prediction."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.matrix.rules.rule import Rule


def mtp_reads_tokens(config: CellConfig) -> str | None:
    mtp = config.model.mtp
    if mtp is None or config.path.tokens_on_last_stage or (mtp.stage is not None and config.path.predicts_on_any_stage):
        return None
    return f"multi-token prediction needs tokens on the last stage, and packing {config.data_path} passes none"


def mtp_has_stage(config: CellConfig) -> str | None:
    mtp, pp = config.model.mtp, config.layout.pp
    if mtp is None or mtp.stage is None:
        return None
    if mtp.stage >= pp:
        return f"model.mtp.stage is {mtp.stage}, and pp {pp} has stages 0 to {pp - 1}"
    if config.train.steps:
        return (
            f"model.mtp.stage is {mtp.stage}, and the model that the harness trains has its prediction layers on the "
            "last stage; with train.steps 0 the cell only fetches batches"
        )
    if config.path.predicts_on_any_stage:
        return None
    return f"model.mtp.stage is {mtp.stage}, and packing {config.data_path} reads for prediction on the last stage only"


PREDICTION_RULES: tuple[Rule, ...] = (
    Rule("mtp.tokens", "harness: which data paths pass tokens to the last stage", mtp_reads_tokens),
    Rule(
        "mtp.stage",
        "harness: prediction layers of the probe's model; Megatron-LM mtp_on_this_rank with a pipeline layout",
        mtp_has_stage,
    ),
)
