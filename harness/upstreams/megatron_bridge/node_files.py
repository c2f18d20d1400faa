"""The files that Megatron-Bridge's fine-tuning data sets read: a tokenizer, and documents, packed into rows or not.

Documents that are not packed are written as JSONL, which upstream tokenizes while it trains. Upstream packs all
documents of a file together. So its own code packs those of each step, as its script for packing ahead does, and the
rows are written as Parquet. Either way one file holds all steps, and another one all evaluations, in the order in
which its sampler, which shuffles, deals them as the plan says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.core.cell.config import CellConfig
from harness.core.run.run_dir import AttemptDir
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_bridge.node_offline import (
    built_tokenizer,
    document_line,
    longest_first,
    packed_config,
    read_as,
    write_documents,
)
from harness.upstreams.megatron_bridge.node_step import dataset_config
from harness.upstreams.node_tokenizer import text, write_tokenizer

T = TypeVar("T")
_ROWS, _EVALUATED = "rows.idx.parquet", "evaluated.idx.parquet"


def write_files(folder: Path, config: CellConfig) -> None:
    """Write the tokenizer, and documents or packed rows, into a new folder. On one rank; imports Megatron-Bridge."""
    folder.mkdir(parents=True)
    write_tokenizer(folder / "tokenizer", config.model.vocab)
    write = _write_packed if config.style.packed else _write_documents
    write(folder, config)


def _write_documents(folder: Path, config: CellConfig) -> None:
    train = config.train
    for name, steps in (("training", range(train.steps)), ("validation", range(train.steps, train.passes))):
        lines = [line for step in steps for line in _lines(config, step)]
        if lines:
            (folder / f"{name}.jsonl").write_text("".join(_to_be_shuffled(lines, train.seed)), encoding="utf-8")


def _lines(config: CellConfig, step: int) -> list[str]:
    truth = StepTruth(config, step, 0)
    return [document_line(truth, placed.document, text) for row in config.rows(step) for placed in row.placed]


def _write_packed(folder: Path, config: CellConfig) -> None:
    from megatron.bridge.data.packing.parquet import write_packed_parquet

    tokenizer = built_tokenizer(folder)
    steps = [_packed(folder / f"step-{n}", StepTruth(config, n, 0), tokenizer) for n in range(config.train.passes)]
    trained, evaluated = steps[: config.train.steps], steps[config.train.steps :]
    for name, part in ((_ROWS, trained), (_EVALUATED, evaluated)):
        rows = [row for of_step, _ in part for row in of_step]
        if rows:
            write_packed_parquet(_to_be_shuffled(rows, config.train.seed), folder / name)
    metadata = [entry for _, about in steps for entry in about]
    (folder / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


def reserve_files(folder: Path) -> None:
    """Create empty files in the places of those that the configuration refers to, which it wants to exist."""
    folder.mkdir()
    reserve_pretrained(folder)
    for name in (_ROWS, _EVALUATED, "metadata.json"):
        (folder / name).touch()


def reserve_pretrained(folder: Path) -> None:
    """Create the folder of the weights that adapters are put on, which are written when upstream has built its
    model.
    """
    AttemptDir(folder.parent).pretrained.mkdir(exist_ok=True)


def data_config(folder: Path, config: CellConfig) -> Any:
    """Return upstream's configuration of the data set, for a folder with the files; its loader has its defaults."""
    rows = _packed_rows if config.style.packed else _rows_of_documents
    data = rows(folder, config)
    # Workers would be forked from a process with gloo's threads.
    data.seed, data.num_workers, data.do_validation = config.train.seed, 0, bool(config.train.evaluated)
    return data


def _rows_of_documents(folder: Path, config: CellConfig) -> Any:
    return dataset_config(config, str(folder), **read_as(config))


def _packed_rows(folder: Path, config: CellConfig) -> Any:
    packed = {"packed_train_data_path": folder / _ROWS, "packed_metadata_path": folder / "metadata.json"}
    if config.train.evaluated:
        packed |= {"packed_val_data_path": folder / _EVALUATED}
    return packed_config(config, folder, **packed)


def _packed(folder: Path, truth: StepTruth, tokenizer: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the rows into which upstream packs the documents of a step, in order, and what it records about them."""
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, build_gpt_sft_split

    write_documents(folder, truth, text)
    config = truth.config
    # A builder per step: upstream packs a whole file at once, and would mix the steps' documents.
    builder = GPTSFTDatasetBuilder(packed_config(config, folder), tokenizer)
    with longest_first():
        builder.prepare_data()
    size, seed = config.train.seq_length, config.train.seed
    options = {
        "tokenizer": tokenizer,
        "seq_length": size,
        "packed_sequence_size": size,
        "memmap_workers": 1,
        "seed": seed,
    }
    dataset = build_gpt_sft_split(builder.train_path_packed, pad_seq_to_mult=config.style.document_multiple, **options)
    rows = [dataset[number] for number in range(len(dataset))]
    names = ("input_ids", "loss_mask")
    packed = [{name: row[name] for name in names} | {"seq_start_id": row["seq_boundaries"][:-1]} for row in rows]
    return packed, json.loads(builder.pack_metadata.read_text())


def shuffled(count: int, seed: int) -> list[int]:
    """Return the order in which MegatronPretrainingBatchSampler reads the rows of a file in the first epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def _to_be_shuffled(items: list[T], seed: int) -> list[T]:
    """Return the order in which a file has to hold the items, so that they are read in their own order."""
    return [items[number] for number in inverse(shuffled(len(items), seed))]


def inverse(order: list[int]) -> list[int]:
    """Return the order of a file that, read in `order`, gives 0, 1, 2 and so on."""
    placed = [0] * len(order)
    for number, place in enumerate(order):
        placed[place] = number
    return placed
