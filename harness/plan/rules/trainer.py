"""Rules of upstream's own trainers: what the harness passes to them, and what they need."""

from __future__ import annotations

from harness.core.cell.axis_values import HARNESS
from harness.core.cell.config import CellConfig
from harness.core.data_paths.table import DATA_PATHS, names
from harness.core.packing.documents import MIXES
from harness.plan.rules.rule import Own, Rule


def data_path_has_trainer(config: CellConfig) -> str | None:
    if config.trainer in config.path.trainers:
        return None
    able = names(path for path in DATA_PATHS.values() if config.trainer in path.trainers)
    return f"trainer is {config.trainer}, which reads the data of packing {able}, and packing is {config.data_path}"


def equal_steps(config: CellConfig) -> str | None:
    """Upstream's global batch size is one number of rows for all steps."""
    if config.documents.mode in MIXES:
        return None
    try:
        counts = [_rows(config, step) for step in range(config.train.steps)]
    except ValueError:
        return None  # a rule of the layout names the step
    other = next((step for step, count in enumerate(counts) if count != counts[0]), None)
    if other is None:
        return None
    return f"step 0 has {counts[0]} rows and step {other} has {counts[other]}; --global-batch-size is one for all steps"


def _rows(config: CellConfig, step: int) -> int:
    return sum(len(batch.rows) for replica in config.micro_batches(step) for batch in replica)


def plain_model(config: CellConfig) -> str | None:
    parts = ("moe", "mtp", "mla", "rope_fusion", "cuda_graphs")
    found = next((name for name in parts if getattr(config.model, name)), None)
    return found and f"trainer {config.trainer} gets the flags of a dense model, and model.{found} is set"


def _by_upstream(own: Own) -> bool:
    return own.trainer != HARNESS


RULES: tuple[Rule[CellConfig], ...] = (
    Rule("trainer.data-path", "harness: the adapters of upstream's trainers", data_path_has_trainer, _by_upstream),
    Rule("trainer.rows", "Megatron-LM --global-batch-size", equal_steps, _by_upstream),
    Rule("trainer.model", "harness: the adapters of upstream's trainers", plain_model, _by_upstream),
)
