"""The files that upstream's data sets and tokenizer read: the rows of a cell, in as many files as it asks for.

Upstream's BlendedDataset takes samples from files of equal weight in turn (`build_blending_indices`), so rows are dealt
in turn. For --sft they are conversations, for pretraining token ids in an indexed file.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.packing.arithmetic import PlacedDocument, Row
from harness.core.packing.documents import Document, DocumentsConfig
from harness.core.packing.options import align_up
from harness.oracle.drawing import END, START
from harness.probe.truth import StepTruth
from harness.upstreams.node_tokenizer import conversation, text, write_tokenizer

PROMPT_FORMAT = "nemotron-h-aligned"  # of SFTTokenizer from core_v0.16 on; `identity` does not always mask prompts
MARKERS = r"<SPECIAL_1[01]>(System|User|Assistant)"  # of its template
SUFFIX = ".jsonl"


def write_conversations(place: Path, config: CellConfig, rows: Sequence[tuple[int, Row]]) -> None:
    """Write `place` with the suffix; `rows`: each with its step, in order."""
    Path(f"{place}{SUFFIX}").write_text("".join(lines(config, rows)), encoding="utf-8")


# Packed rows for upstream's fine-tuning data set: conversations of a cell's documents.
#
# A line of the JSONL file is a row of the packing plan, in the order in which MegatronPretrainingSampler deals rows to
# replicas. Each document is a conversation: an empty system message, then prompts by the user and answers by the
# assistant in turn. A token's text is its id. The tokenizer drops the markers that upstream's chat template puts around
# messages, so that upstream, by its own code, makes the tokens and masks of the plan.
def lines(config: CellConfig, rows: Sequence[tuple[int, Row]]) -> list[str]:
    """Return the rows as JSON lines, one conversation per row, with a message for each part of its documents."""
    truths = {step: StepTruth(config, step, 0) for step, _ in rows}
    conversations = [
        [message for placed in row.placed for message in messages_of(truths[step], placed.document)]
        for step, row in rows
    ]
    return [json.dumps({"messages": messages}) + "\n" for messages in conversations]


def messages_of(truth: StepTruth, document: Document) -> list[dict[str, str]]:
    """Return the messages of a document; with pad_seq_to_mult, padding is part of the last one."""
    ids = truth.content(document).tolist()
    padding = [truth.pad_id] * (align_up(len(ids), truth.config.options.pad_seq_to_mult or 1) - len(ids))
    spoken = conversation(ids, document)
    spoken[-1]["content"] += text(padding)
    return [{"role": "system", "content": ""}, *spoken]


HELPERS = "megatron.core.datasets.helpers_cpp"  # compiled; indices of samples and of blends


def write_indexed(place: Path, config: CellConfig, rows: Sequence[tuple[int, Row]]) -> None:
    """Write `place`.bin and `place`.idx; `rows`: each with its step, in order."""
    upstream: Any = importlib.import_module("megatron.core.datasets.indexed_dataset")
    truths = {step: StepTruth(config, step, 0) for step, _ in rows}
    contents = [[_padded(truths[step], placed) for placed in row.placed] for step, row in rows]
    builder = upstream.IndexedDatasetBuilder(f"{place}.bin", dtype=numpy.int32)
    for ids in _to_be_shuffled(contents, config.train):
        builder.add_document(ids, [len(ids)])
    builder.finalize(f"{place}.idx")


# Rows for upstream's pretraining data set, GPTDataset: token ids in an indexed file.
#
# GPTDataset shuffles the documents of a file by the seed, cuts their stream into samples of seq_length and one token
# more, and shuffles the samples. The documents of a row fill seq_length tokens, so that it is exactly one sample, and
# are written so that upstream, which shuffles, reads the rows in the order of the plan. Documents end with the token
# that ends documents, and so does all padding: with --eod-mask-loss, no such token predicts the next one. Without it
# there is no padding, and the label of the last token of a row is the first of the next row: all begin with START.
def _padded(truth: StepTruth, placed: PlacedDocument) -> Tensor:
    ids = torch.full((placed.padded_length,), END)
    content = truth.content(placed.document)
    ids[: len(content)] = content[: placed.padded_length]
    return ids


def _to_be_shuffled(rows: list[list[Tensor]], train: TrainConfig) -> list[Tensor]:
    """Return the documents of the rows in the order that a file needs.

    Upstream's own functions shuffle one epoch of them.

    There are more rows, of padding: the last sample has a token of the next row, and a blend asks for 0.5 % more.
    """
    upstream: Any = importlib.import_module("megatron.core.datasets.gpt_dataset")
    spare = 2 + len(rows) // 100
    padding = END if train.eod_mask_loss else START
    stream = [[torch.full((train.seq_length,), padding)]] * (len(rows) + spare)
    documents = sum(len(row) for row in rows) + spare
    # One generator for both shuffles, in upstream's order: the second continues where the first stopped.
    state = numpy.random.RandomState(train.seed)
    order = upstream._build_document_index(numpy.arange(documents), 1, state, False)
    for row, sample in zip(rows, upstream._build_shuffle_index(len(stream) - 1, len(stream) - 1, state)):
        stream[sample] = row
    documents_read = [ids for row in stream for ids in row]
    # The inverse permutation, so that upstream's shuffle undoes it.
    return [documents_read[place] for place in numpy.argsort(order)]


_TRAINED, _EVALUATED = "trained", "evaluated"


def write_files(folder: Path, config: CellConfig) -> None:
    """Write data sets and tokenizer into a new folder."""
    folder.mkdir(parents=True)
    if config.documents.mock:
        write_mock_config(folder, config.documents)
    else:
        write_rows(folder, config)
    without = MARKERS if config.path.chats else None
    write_tokenizer(tokenizer(folder), config.model.vocab, without=without)


def write_mock_config(folder: Path, documents: DocumentsConfig) -> None:
    """Write what upstream's mock data sets draw lengths from."""
    names = ("mode", "type", "min_seq_len", "max_seq_len", "mean_seq_len", "lognormal_sigma")
    mock_config(folder).write_text(json.dumps({name: getattr(documents, name) for name in names}))


def mock_config(folder: Path) -> Path:
    """Return the JSON file of --sft-mock-dataset-config-json or --varlen-mock-dataset-config-json."""
    return folder / "mock.json"


def write_rows(folder: Path, config: CellConfig) -> None:
    """Write the data sets of training and evaluation."""
    train = config.train
    write = write_conversations if config.path.chats else write_indexed
    for name, steps in ((_TRAINED, range(train.steps)), (_EVALUATED, range(train.steps, train.passes))):
        rows = [(step, row) for step in steps for row in config.samples(step)]
        if rows:
            for number, place in enumerate(_places(folder, name, config)):
                write(place, config, rows[number :: config.data_files])


def blend(folder: Path, config: CellConfig, *, evaluated: bool = False) -> list[str]:
    """Return the value of --train-data-path, or of --valid-data-path: a path, or weights and paths."""
    suffix = SUFFIX if config.path.chats else ""  # upstream appends .bin and .idx
    paths = [f"{place}{suffix}" for place in _places(folder, _EVALUATED if evaluated else _TRAINED, config)]
    return paths if len(paths) == 1 else [word for path in paths for word in ("1", path)]


def tokenizer(folder: Path) -> Path:
    """Return a Hugging Face tokenizer."""
    return folder / "tokenizer"


def _places(folder: Path, name: str, config: CellConfig) -> Iterator[Path]:
    return (folder / f"{name}-{number}" for number in range(config.data_files))
