"""Unpacked rows for upstream's pretraining data set, GPTDataset: one indexed file, in which every row is a document.

GPTDataset cuts the stream of tokens into samples of seq_length and one token more, and shuffles documents and samples
by the seed. Documents of seq_length tokens are samples of their own, and are written so that upstream, which shuffles,
reads them in the order of the plan. A row is padded with end-of-document tokens, with which its document ends: with
--eod-mask-loss, none of them predicts the next one.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import Row
from harness.node.probe.truth import StepTruth
from harness.node.probe.weights import END

HELPERS = "megatron.core.datasets.helpers_cpp"  # compiled; indices of samples and of blends


def write(place: Path, config: CellConfig, rows: Sequence[tuple[int, Row]]) -> None:
    """Write `place`.bin and `place`.idx; `rows`: each with its step, in order."""
    upstream: Any = importlib.import_module("megatron.core.datasets.indexed_dataset")
    size = config.train.seq_length
    documents = torch.full((len(rows) + _spare(len(rows)), size), END)
    truths = {step: StepTruth(config, step, 0) for step, _ in rows}
    for number, (step, row) in zip(_order(len(documents), config.train.seed), rows):
        ids = truths[step].content(row.placed[0].document)
        documents[number, : len(ids)] = ids
    builder = upstream.IndexedDatasetBuilder(f"{place}.bin", dtype=numpy.int32)
    for ids in documents:
        builder.add_document(ids, [size])
    builder.finalize(f"{place}.idx")


def _spare(rows: int) -> int:
    """Documents beyond the rows: the last sample has a token of the next document, a blend asks for 0.5 % more."""
    return 2 + rows // 100


def _order(documents: int, seed: int) -> list[int]:
    """The numbers of the documents in the order in which upstream, by its own shuffles, reads one epoch of them."""
    upstream: Any = importlib.import_module("megatron.core.datasets.gpt_dataset")
    state = numpy.random.RandomState(seed)
    read = upstream._build_document_index(numpy.arange(documents), 1, state, False)
    samples = upstream._build_shuffle_index(documents - 1, documents - 1, state)
    return [int(read[sample]) for sample in samples]
