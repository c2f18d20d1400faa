from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.node.device.placement import choose_device
from harness.node.trainers.megatron.flags import flags
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
