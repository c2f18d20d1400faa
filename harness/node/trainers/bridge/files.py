"""The files that Megatron-Bridge's packed fine-tuning data set reads: documents, a tokenizer, packed rows.

Upstream packs all documents of a file together. So its own code packs those of each step, as its script for packing
ahead does, and the rows of all steps are put into one file, and those of all evaluations into another, ordered so that
its sampler, which shuffles, deals them as the plan says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from harness.core.cell.config import CellConfig
from harness.node.data_paths.bridge.offline import built_tokenizer, longest_first, packed_config, write_documents
from harness.node.probe.truth import StepTruth
from harness.node.trainers.tokenizer import text, write_tokenizer

_ROWS, _EVALUATED = "rows.idx.parquet", "evaluated.idx.parquet"


def write_files(folder: Path, config: CellConfig) -> None:
    """Write the tokenizer and the packed rows into a new folder. On one rank; imports Megatron-Bridge."""
    from megatron.bridge.data.packing.parquet import write_packed_parquet

    folder.mkdir(parents=True)
    write_tokenizer(folder / "tokenizer", config.model.vocab)
    own = built_tokenizer(folder)
    steps = [_packed(folder / f"step-{n}", StepTruth(config, n, 0), own) for n in range(config.train.passes)]
    trained, evaluated = steps[: config.train.steps], steps[config.train.steps :]
    for name, part in ((_ROWS, trained), (_EVALUATED, evaluated)):
        rows = [row for of_step, _ in part for row in of_step]
        order = shuffled(len(rows), config.train.seed)
        if rows:
            write_packed_parquet([rows[number] for number in inverse(order)], folder / name)
    metadata = [item for _, about in steps for item in about]
    (folder / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


def reserve_files(folder: Path) -> None:
    """Empty files in the places of those that the configuration refers to, which it wants to exist."""
    for name in (_ROWS, _EVALUATED, "metadata.json"):
        (folder / name).touch()


def data_config(folder: Path, config: CellConfig) -> Any:
    """Upstream's configuration of the data set, for a folder with the files; its loader has its defaults."""
    packed = {"packed_train_data_path": folder / _ROWS, "packed_metadata_path": folder / "metadata.json"}
    if config.train.evaluated:
        packed |= {"packed_val_data_path": folder / _EVALUATED}
    found = packed_config(config, folder, **packed)
    found.seed, found.num_workers, found.do_validation = config.train.seed, 0, bool(config.train.evaluated)
    return found


def _packed(folder: Path, truth: StepTruth, own: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The rows into which upstream packs the documents of a step, in order, and what it records about them."""
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, build_gpt_sft_split

    write_documents(folder, truth, text)
    config = truth.config
    builder = GPTSFTDatasetBuilder(packed_config(config, folder), own)
    with longest_first():
        builder.prepare_data()
    size, seed = config.train.seq_length, config.train.seed
    read = {"tokenizer": own, "seq_length": size, "packed_sequence_size": size, "memmap_workers": 1, "seed": seed}
    found = build_gpt_sft_split(builder.train_path_packed, pad_seq_to_mult=config.style.document_multiple, **read)
    rows = [found[number] for number in range(len(found))]
    names = ("input_ids", "loss_mask")
    packed = [{name: row[name] for name in names} | {"seq_start_id": row["seq_boundaries"][:-1]} for row in rows]
    return packed, json.loads(builder.pack_metadata.read_text())


def shuffled(count: int, seed: int) -> list[int]:
    """The order in which MegatronPretrainingBatchSampler reads the rows of a file in the first epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def inverse(order: list[int]) -> list[int]:
    """The order of a file that, read in `order`, gives 0, 1, 2 and so on."""
    placed = [0] * len(order)
    for number, place in enumerate(order):
        placed[place] = number
    return placed
