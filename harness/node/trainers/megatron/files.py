"""The files that upstream's data sets and tokenizer read: the rows of a cell, in as many files as it asks for.

Upstream's BlendedDataset takes samples from files of equal weight in turn (`build_blending_indices`), so rows are dealt
in turn. For --sft they are conversations, for pretraining token ids in an indexed file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import DocumentsConfig
from harness.node.trainers.megatron import conversations, indexed
from harness.node.trainers.tokenizer import write_tokenizer

_TRAINED, _EVALUATED = "trained", "evaluated"


def write_files(folder: Path, config: CellConfig) -> None:
    """Write data sets and tokenizer into a new folder."""
    folder.mkdir(parents=True)
    if config.documents.mock:
        write_mock_config(folder, config.documents)
    else:
        write_rows(folder, config)
    without = conversations.MARKERS if config.path.chats else None
    write_tokenizer(tokenizer(folder), config.model.vocab, without=without)


def write_mock_config(folder: Path, documents: DocumentsConfig) -> None:
    """Write what upstream's mock data sets draw lengths from."""
    names = ("mode", "type", "min_seq_len", "max_seq_len", "mean_seq_len", "lognormal_sigma")
    mock_config(folder).write_text(json.dumps({name: getattr(documents, name) for name in names}))


def mock_config(folder: Path) -> Path:
    """The JSON file of --sft-mock-dataset-config-json or --varlen-mock-dataset-config-json."""
    return folder / "mock.json"


def write_rows(folder: Path, config: CellConfig) -> None:
    """Write the data sets of training and evaluation."""
    train = config.train
    write = conversations.write if config.path.chats else indexed.write
    for name, steps in ((_TRAINED, range(train.steps)), (_EVALUATED, range(train.steps, train.passes))):
        rows = [(step, row) for step in steps for row in config.samples(step)]
        if rows:
            for number, place in enumerate(_places(folder, name, config)):
                write(place, config, rows[number :: config.data_files])


def blend(folder: Path, config: CellConfig, *, evaluated: bool = False) -> list[str]:
    """The value of --train-data-path, or of --valid-data-path: a path, or weights and paths."""
    suffix = conversations.SUFFIX if config.path.chats else ""  # upstream appends .bin and .idx
    paths = [f"{place}{suffix}" for place in _places(folder, _EVALUATED if evaluated else _TRAINED, config)]
    return paths if len(paths) == 1 else [word for path in paths for word in ("1", path)]


def tokenizer(folder: Path) -> Path:
    """A Hugging Face tokenizer."""
    return folder / "tokenizer"


def _places(folder: Path, name: str, config: CellConfig) -> Iterator[Path]:
    return (folder / f"{name}-{number}" for number in range(config.data_files))
