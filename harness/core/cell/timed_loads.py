"""Configurations for the loads of a timing leg: the model and layout of the cell, with other documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.core.cell.config import CellConfig
from harness.core.cell.flops import train_flops
from harness.core.cell.timing import NOT_TIMED, step_tokens
from harness.core.data_paths.own import REFERENCE, UNPACKED
from harness.core.packing.arithmetic import MicroBatch, row_multiple
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import DEFAULT_OPTIONS


def load_config(config: CellConfig, load: str, documents: int) -> CellConfig | None:
    """The configuration whose step 0 a load runs; None if the load is not a pass of the model.

    ValueError if the layout cannot run it.
    """
    if load == "step":
        return slope_config(config, documents)
    if load in ("unpacked", "full"):
        made = unpacked_config(config) if load == "unpacked" else full_config(config)
        made.micro_batches(0)
        return made
    return config if load in ("packed", "turn") else None


def slope_config(config: CellConfig, documents: int) -> CellConfig:
    """The cell with packs of `documents` equally long documents, and as few packs as the layout allows."""
    tokens = step_tokens(config.timing, config.layout)
    packs = row_multiple(config.layout, 1)
    return replace(
        config,
        data_path=REFERENCE.name,
        micro_batch_size=1,
        options=DEFAULT_OPTIONS,
        train=replace(config.train, seq_length=tokens, global_batch=documents * packs),
        documents=DocumentsConfig(mode="file", lengths=(tokens // documents,)),
        timing=NOT_TIMED,
    )


def unpacked_config(config: CellConfig) -> CellConfig:
    """The cell's own documents, one per row, in the same layout."""
    return replace(config, data_path=UNPACKED.name, options=DEFAULT_OPTIONS, timing=NOT_TIMED)


def full_config(config: CellConfig) -> CellConfig:
    """As many rows as the cell has, each filled by one document: every slot but the last is a real token."""
    rows = sum(len(batch.rows) for replica in config.micro_batches(0) for batch in replica)
    length = config.train.seq_length
    return replace(
        unpacked_config(config),
        micro_batch_size=1,
        train=replace(config.train, global_batch=rows),
        documents=DocumentsConfig(mode="file", lengths=(length,)),
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """The amount of work in one pass, over all replicas."""

    real_tokens: int
    slots: int
    flops: float


def work_of(config: CellConfig) -> Work:
    """The work of step 0."""
    batches: Sequence[MicroBatch] = [batch for replica in config.micro_batches(0) for batch in replica]
    return Work(
        real_tokens=sum(batch.real_tokens for batch in batches),
        slots=sum(batch.slots for batch in batches),
        flops=train_flops(config.model, (document.length for document in config.documents_of(0))),
    )
