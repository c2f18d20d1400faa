"""With upstream's GPTDataset, which needs only its compiled helpers, reading the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch

from harness.core.packing.documents import DocumentsConfig, mix
from harness.oracle.drawing import END, PADDING
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_lm.node_files import HELPERS, write_indexed
from tests.runtime.conftest import config

gpt_dataset: Any = pytest.importorskip("megatron.core.datasets.gpt_dataset")
pytest.importorskip(HELPERS)


class Tokens:
    """What the data set asks of a tokenizer."""

    eod, pad, vocab_size = END, PADDING, 128
    unique_identifiers: ClassVar[dict[str, str]] = {}


FULL = DocumentsConfig(mode="file", lengths=(20, 44, 30, 34, 10, 54, 2, 62))


@pytest.mark.parametrize(
    ("data_path", "documents", "masked"),
    [
        ("unpacked", None, True),
        ("inter_document", None, True),
        ("inter_document", FULL, True),
        ("inter_document", FULL, False),
    ],
)
@pytest.mark.parametrize("surplus", [0, 1])  # samples that a blend asks for beyond those that it needs
def test_upstream_reads_the_rows_in_order_and_leaves_padding_out_of_the_loss(
    tmp_path: Path, surplus: int, data_path: str, documents: DocumentsConfig | None, masked: bool
) -> None:
    cell = replace(config(data_path), trainer="megatron")
    cell = replace(cell, documents=documents or mix("plain", cell.train.seq_length, 1))
    cell = replace(cell, train=replace(cell.train, eod_mask_loss=masked))
    rows = [(step, row) for step in range(cell.train.steps) for row in cell.rows(step)]
    write_indexed(tmp_path / "rows", cell, rows)
    files = gpt_dataset.IndexedDataset(str(tmp_path / "rows"))
    asked = gpt_dataset.GPTDatasetConfig(
        random_seed=cell.train.seed,
        sequence_length=cell.train.seq_length,
        blend=([str(tmp_path / "rows")], None),
        split="1",
        tokenizer=Tokens(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=masked,
        create_attention_mask=False,
    )
    every = numpy.arange(len(files), dtype=numpy.int32)
    train = gpt_dataset.Split.train
    found = gpt_dataset.GPTDataset(files, str(tmp_path / "rows"), every, len(rows) + surplus, train, asked)
    expected = [
        (micro.tokens, micro.labels, micro.loss_mask)
        for step in range(cell.train.steps)
        for micro in StepTruth(cell, step, 0).micro_batches
    ]
    for number, (tokens, labels, mask) in enumerate(expected):
        sample, real = found[number], mask > 0
        assert torch.equal(sample["loss_mask"], mask)
        assert torch.equal(sample["tokens"][real], tokens[real])
        assert torch.equal(sample["labels"][real], labels[real])
        assert masked or (real.all() and torch.equal(sample["tokens"], tokens))
