"""Forbidden combinations that are refused by validators other than ConfigContainer.validate.

| case | validator | releases |
|---|---|---|
| missing metadata | GPTSFTPackedDataset: data.datasets.sft up to 0.5, data.packing.gpt_sft in 0.6 | 0.4 to 0.6 |
| cp and seq_length | megatron.training.arguments.validate_args | megatron-core wheels 0.17 to 0.19 |
| iterators of tp ranks above 0 | megatron.core.datasets.data_schedule.wrap_data_iterator | main and dev of 2026-08 |
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def pad_cu_seqlens(forbidden: bool, folder: Path) -> None:
    """Open a packed file with pad_cu_seqlens: forbidden without the file's metadata."""
    from harness.node.data_paths.bridge.offline import Numbers, write_packed_row

    try:
        from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset
    except ModuleNotFoundError:  # up to 0.5
        from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset
    rows, metadata = folder / "rules.npy", folder / "rules_metadata.json"
    write_packed_row(rows)
    counts = {"max_samples_per_bin": 1, "dataset_max_seqlen": 4, "min_packed_seqlen": 4}
    metadata.write_text(json.dumps([counts]), encoding="utf-8")
    GPTSFTPackedDataset(
        str(rows),
        Numbers(),
        max_seq_length=64,
        label_key="output",
        prompt_template="{input} {output}",
        truncation_field="input",
        pad_to_max_length=True,
        pad_cu_seqlens=True,
        pack_metadata_file_path=None if forbidden else str(metadata),
    )


def megatron_arguments(forbidden: bool, folder: Path) -> None:
    """Validate Megatron-LM's command line for cp 2: forbidden with a sequence length that is not a multiple of 4."""
    from megatron.training import arguments

    length = "66" if forbidden else "64"
    options = {
        "--num-layers": "2",
        "--hidden-size": "64",
        "--num-attention-heads": "8",
        "--seq-length": length,
        "--max-position-embeddings": length,
        "--micro-batch-size": "1",
        "--global-batch-size": "2",
        "--train-iters": "2",
        "--lr": "0.001",
        "--context-parallel-size": "2",
        "--transformer-impl": "local",
        "--tokenizer-type": "NullTokenizer",
        "--vocab-size": "128",
    }
    argv = [word for pair in options.items() for word in pair]
    with _command_line(argv, ranks=2), _architecture(arguments):
        arguments.validate_args(arguments.parse_args())


def iterator_on_every_rank(forbidden: bool, folder: Path) -> None:
    """Schedule one document: forbidden on tp rank 1, which reads it too, as ranks of NeMo-RL do."""
    from megatron.core.datasets import data_schedule
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "pp", "dp", "dp_cp"])
    if forbidden:
        groups.tp = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    names = "tokens", "labels", "loss_mask", "position_ids"
    document = {name: torch.ones(4, dtype=torch.int64) for name in names} | {"loss_mask": torch.ones(4)}
    document |= {name: torch.tensor([4]) for name in ("original_seq_len", "padded_seq_len")}
    config = SimpleNamespace(
        sequence_packing_scheduler="dp_balanced",
        max_seqlen_per_dp_cp_rank=8,
        virtual_pipeline_model_parallel_size=None,
        mtp_num_layers=None,
        pipeline_model_parallel_layout=None,
    )
    data_schedule.wrap_data_iterator(iter([document]), config, 1, groups)


@contextmanager
def _command_line(argv: list[str], ranks: int) -> Iterator[None]:
    """Set the command line, and the environment of rank 0 of `ranks`."""
    kept = list(sys.argv), dict(os.environ)
    sys.argv[1:] = argv
    os.environ.update(RANK="0", WORLD_SIZE=str(ranks))
    try:
        yield
    finally:
        sys.argv[:] = kept[0]
        os.environ.clear()
        os.environ.update(kept[1])


@contextmanager
def _architecture(arguments: Any) -> Iterator[None]:
    """Without a GPU, let validate_args, which queries the architecture, see that of Blackwell."""
    kept = arguments.get_device_arch_version
    if not torch.cuda.is_available():
        arguments.get_device_arch_version = lambda: 10
    try:
        yield
    finally:
        arguments.get_device_arch_version = kept
