"""Rows for upstream's pretraining data set, GPTDataset: token ids in an indexed file.

GPTDataset shuffles the documents of a file by the seed, cuts their stream into samples of seq_length and one token
more, and shuffles the samples. The documents of a row fill seq_length tokens, so that it is exactly one sample, and
are written so that upstream, which shuffles, reads the rows in the order of the plan. Documents end with the token that
ends documents, and so does all padding: with --eod-mask-loss, no such token predicts the next one.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.packing.arithmetic import PlacedDocument, Row
from harness.node.probe.truth import StepTruth
from harness.oracle.drawing import END

HELPERS = "megatron.core.datasets.helpers_cpp"  # compiled; indices of samples and of blends


def write(place: Path, config: CellConfig, rows: Sequence[tuple[int, Row]]) -> None:
    """Write `place`.bin and `place`.idx; `rows`: each with its step, in order."""
    upstream: Any = importlib.import_module("megatron.core.datasets.indexed_dataset")
    truths = {step: StepTruth(config, step, 0) for step, _ in rows}
    contents = [[_padded(truths[step], item) for item in row.placed] for step, row in rows]
    builder = upstream.IndexedDatasetBuilder(f"{place}.bin", dtype=numpy.int32)
    for ids in _to_be_shuffled(contents, config.train):
        builder.add_document(ids, [len(ids)])
    builder.finalize(f"{place}.idx")


def _padded(truth: StepTruth, item: PlacedDocument) -> Tensor:
    ids = torch.full((item.padded_length,), END)
    content = truth.content(item.document)
    ids[: len(content)] = content
    return ids


def _to_be_shuffled(rows: list[list[Tensor]], train: TrainConfig) -> list[Tensor]:
    """The documents of the rows in the order that a file needs; upstream's own functions shuffle one epoch of them.

    There are more rows, of padding: the last sample has a token of the next row, and a blend asks for 0.5 % more.
    """
    upstream: Any = importlib.import_module("megatron.core.datasets.gpt_dataset")
    spare = 2 + len(rows) // 100
    stream = [[torch.full((train.seq_length,), END)]] * (len(rows) + spare)
    documents = sum(len(row) for row in rows) + spare
    state = numpy.random.RandomState(train.seed)
    order = upstream._build_document_index(numpy.arange(documents), 1, state, False)
    for row, sample in zip(rows, upstream._build_shuffle_index(len(stream) - 1, len(stream) - 1, state)):
        stream[sample] = row
    read = [ids for row in stream for ids in row]
    return [read[place] for place in numpy.argsort(order)]
