from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.cell.axes import axes, dotted, with_value
from harness.core.cell.config import CellConfig
from harness.core.cell.model import MlaConfig, MoeConfig, MtpConfig
from harness.core.packing.documents import mix
from harness.node.device.placement import choose_device
from harness.node.trainers.megatron.files import _lines
from harness.node.trainers.megatron.flags import flags
from harness.plan.rules.table import rejections
from tests.node.conftest import config

CPU = choose_device(0, 1, "cpu")


def test_the_command_line_holds_data_layout_and_optimizer() -> None:
    found = flags(config("sft", tp=2, dp=2), Path("/data"), CPU)
    assert {
        "--sft",
        "--tensor-model-parallel-size=2",
        "--sequence-parallel",
        "--data-path=/data/conversations.jsonl",
        "--tokenizer-model=/data/tokenizer",
        "--clip-grad=0.0",
        "--transformer-impl=local",
        "--distributed-backend=gloo",
        "--untie-embeddings-and-output-weights",
    } <= set(found)
    assert len({flag.partition("=")[0] for flag in found}) == len(found)  # none twice


def test_the_global_batch_is_the_rows_of_a_step() -> None:
    cell = config("sft", dp=2)
    rows = sum(len(batch.rows) for replica in cell.micro_batches(0) for batch in replica)
    assert f"--global-batch-size={rows}" in flags(cell, Path("/data"), CPU)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"distributed_optimizer": "on"}, {"--use-distributed-optimizer"}),
        ({"distributed_optimizer": "overlap"}, {"--overlap-grad-reduce", "--overlap-param-gather"}),
        ({"recompute": "selective"}, {"--recompute-granularity=selective"}),
        ({"recompute": "full"}, {"--recompute-granularity=full", "--recompute-num-layers=1"}),
        ({"dtype": "bf16"}, {"--bf16"}),
    ],
)
def test_an_axis_is_a_flag(changes: dict[str, str], wanted: set[str]) -> None:
    plain = config("sft")
    assert not wanted & set(flags(plain, Path("/data"), CPU))
    assert wanted <= set(flags(replace(plain, **changes), Path("/data"), CPU))  # type: ignore[arg-type]


OTHER_VALUES: dict[str, Any] = {
    "tp": 2,
    "pp": 2,
    "cp": 2,
    "dp": 2,
    "ep": 2,
    "vpp": 2,
    "sp": True,
    "packing": "reference",
    "forbidden": "cp-seq-length",
    "micro_batch_size": 2,
    "dtype": "bf16",
    "attention": "te",
    "recompute": "full",
    "distributed_optimizer": "on",
    "documents": "uncut",
    "pad_seq_to_mult": 4,
    "calculate_per_token_loss": False,
    "average_in_collective": True,
    "model.layers": 8,
    "model.hidden": 128,
    "model.heads": 4,
    "model.kv_heads": 2,
    "model.ffn": 256,
    "model.vocab": 256,
    "model.rope_base": 500,
    "model.tied": True,
    "model.rope_fusion": True,
    "model.cuda_graphs": True,
    "model.moe": MoeConfig(),
    "model.mtp": MtpConfig(),
    "model.mla": MlaConfig(),
    "train.steps": 3,
    "train.global_batch": 4,
    "train.seq_length": 32,
    "train.lr": 0.5,
    "train.seed": 7,
}
ELSEWHERE = {
    "device": "the flags are those of the device that the rank has chosen",
    "stack": "the code that is run",
    "trainer": "the trainer itself",
    "timed": "no trainer of upstream is timed",
    **dict.fromkeys(("pad_to_max_length", "pad_cu_seqlens", "metadata", "remove_microbatch_padding"), "not of sft"),
}


def asked_of_upstream(cell: CellConfig) -> tuple[list[str], list[str]]:
    return flags(cell, Path("/data"), CPU), _lines(cell)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_no_axis_is_dropped_in_silence(name: str) -> None:
    """Each changes the command line or the data, or a rule rejects the cell."""
    plain = replace(config("sft"), trainer="megatron")
    axis = (axes() | dotted())[name]
    if name == "documents":
        changed = replace(plain, documents=mix("uncut", 64, 2))
    else:
        changed = with_value(plain, axis, OTHER_VALUES[name])
    assert rejections(changed) or asked_of_upstream(changed) != asked_of_upstream(plain)


def test_every_axis_is_tried() -> None:
    assert OTHER_VALUES.keys() | ELSEWHERE.keys() == axes().keys() | dotted().keys()
