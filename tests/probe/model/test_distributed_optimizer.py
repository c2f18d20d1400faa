"""Sharded gradients in one process: the group has two ranks, and a fake gather supplies the other rank's shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.features.optimizer.node_distributed import connect_schedule, ddp_config, whole_gradients


def cell(value: str, **model: int) -> CellConfig:
    return CellConfig(
        layout=Layout(dp=2), data_path="reference", distributed_optimizer=value, model=ModelConfig(**model)
    )


@pytest.mark.parametrize(("value", "sharded", "overlap"), [("off", 0, 0), ("on", 1, 0), ("overlap", 1, 1)])
def test_ddp_is_configured_as_the_axis_says(value: str, sharded: bool, overlap: bool) -> None:
    made = ddp_config(cell(value))
    assert made.use_distributed_optimizer == sharded
    assert made.overlap_grad_reduce == made.overlap_param_gather == overlap


def test_a_small_model_has_several_buckets_to_overlap_and_a_large_one_has_upstreams() -> None:
    assert ddp_config(cell("overlap", hidden=64, ffn=128)).bucket_size == 64 * 128
    assert ddp_config(cell("overlap", hidden=8192, ffn=28672)).bucket_size == 40_000_000
    assert ddp_config(cell("on")).bucket_size is None


@pytest.mark.parametrize("count", [1, 2])
def test_schedules_get_the_functions_of_every_chunk_only_with_overlap(count: int) -> None:
    chunks: list[Any] = [
        SimpleNamespace(ddp_config=ddp_config(cell("overlap")), no_sync=number, start_grad_sync=-number)
        for number in range(count)
    ]
    upstream = SimpleNamespace()
    connect_schedule(upstream, chunks)
    assert upstream.no_sync_func == ([0, 1] if count == 2 else 0)
    assert upstream.grad_sync_func == ([0, -1] if count == 2 else 0)
    plain = SimpleNamespace()
    connect_schedule(plain, [SimpleNamespace(ddp_config=ddp_config(cell("on")))])  # type: ignore[list-item]
    assert vars(plain) == {}


def test_a_gradient_is_gathered_from_the_shards_of_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))
    bucket = SimpleNamespace(
        grad_data=torch.tensor([1.0, 2, 3, 4, -1, -1, -1, -1]),  # this rank has reduced the first half
        params_list=[first, second],
        param_to_index={first: (0, 4), second: (4, 7)},
    )
    ranks = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    group = SimpleNamespace(buckets=[bucket], intra_distributed_optimizer_instance_group=ranks)

    def gather(shards: list[torch.Tensor], own: torch.Tensor, group: object) -> None:
        shards[0].copy_(own)
        shards[1].copy_(torch.tensor([5.0, 6, 7, 0]))

    monkeypatch.setattr(dist, "all_gather", gather)
    chunk: Any = SimpleNamespace(
        ddp_config=ddp_config(cell("on")), bucket_groups=[group], expert_parallel_bucket_groups=[]
    )
    found = whole_gradients([chunk])
    assert found[first].tolist() == [[1, 2], [3, 4]]
    assert found[second].tolist() == [5, 6, 7]
    assert bucket.grad_data[4:].tolist() == [-1, -1, -1, -1]


def test_without_shards_nothing_is_gathered() -> None:
    assert whole_gradients([SimpleNamespace(ddp_config=ddp_config(cell("off")))]) == {}  # type: ignore[list-item]
