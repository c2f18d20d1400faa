"""Rules of Megatron-Bridge's packing."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.matrix.rules.packing import with_option
from harness.matrix.rules.rule import Rule
from harness.upstreams.megatron_bridge.spec import IN_BATCH, LONG, OFFLINE


def pad_cu_seqlens_needs_max_length(config: CellConfig) -> str | None:
    if not config.options.pad_cu_seqlens or config.options.pad_to_max_length:
        return None
    return "pad_cu_seqlens is true and pad_to_max_length is false: a fixed cu_seqlens needs rows of fixed length"


def pad_cu_seqlens_needs_metadata(config: CellConfig) -> str | None:
    if not config.options.pad_cu_seqlens or config.options.metadata:
        return None
    return "pad_cu_seqlens is true and metadata is false: the number of entries comes from the pack metadata"


def pad_cu_seqlens_has_path(config: CellConfig) -> str | None:
    if not config.options.pad_cu_seqlens or "pad_cu_seqlens" in config.path.options:
        return None
    return f"packing {config.data_path} does not pad cu_seqlens; only {with_option('pad_cu_seqlens')} does"


def means_under_cp(config: CellConfig) -> str | None:
    cp = config.layout.cp
    if cp == 1 or config.options.calculate_per_token_loss or config.path not in (OFFLINE, IN_BATCH, LONG):
        return None
    return f"cp is {cp} and calculate_per_token_loss is false: on a rank whose tokens are all masked the loss was NaN"


BRIDGE_RULES: tuple[Rule, ...] = (
    Rule(
        "packing.pad-cu-seqlens-max-length",
        "Megatron-Bridge ConfigContainer.validate: pad_cu_seqlens requires pad_to_max_length",
        pad_cu_seqlens_needs_max_length,
    ),
    Rule(
        "packing.pad-cu-seqlens-metadata",
        "Megatron-Bridge data/packing/gpt_sft.py: pack metadata asserted when the dataset is built",
        pad_cu_seqlens_needs_metadata,
    ),
    Rule(
        "loss.bridge-means-with-cp", "Megatron-Bridge ConfigContainer.validate: fine-tuning with CP > 1", means_under_cp
    ),
    Rule("packing.pad-cu-seqlens-path", "harness: Megatron-Bridge offline packing only", pad_cu_seqlens_has_path),
)
