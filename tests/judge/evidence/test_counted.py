"""What trainers count of two documents of 5 and 3 tokens in rows of 16 slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.packing.documents import DocumentsConfig
from harness.judge.evidence.counted import Counted, counted
from tests.judge.simulator import config_of, evidence_for

PADDED = Counted(16, 6**2 + 10**2)  # an end token per document; the last one has the padding of the row
ROWS = Counted(16, 16**2)


def cell(data_path: str, trainer: str, **layout: Any) -> CellConfig:
    train = TrainConfig(steps=1, global_batch=2, seq_length=16)
    documents = DocumentsConfig(mode="file", lengths=(5, 3))
    return replace(config_of(data_path, **layout), train=train, documents=documents, trainer=trainer)


@pytest.mark.parametrize(
    ("config", "packed", "right"),
    [
        (cell("sft", "megatron"), True, PADDED),
        (cell("sft", "megatron"), False, ROWS),
        (cell("bridge_offline", "bridge"), True, Counted(16, 5**2 + 3**2 + 8**2)),  # the rest of the row is a segment
        (cell("bridge_offline", "bridge", cp=2), True, ROWS),
        (cell("bridge_long", "bridge"), True, Counted(2 * 16, 2 * 16**2)),  # two rows
    ],
)
def test_the_counts_of_a_step(config: CellConfig, packed: bool, right: Counted) -> None:
    assert counted(evidence_for(config), 0, packed) == right
