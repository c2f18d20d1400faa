"""What the device choice promises on a machine with a GPU: collectives of gloo on CUDA tensors, and real cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import adversarial_mix
from tests.processes import HUNG_S
from tests.runtime.conftest import run_cells

PROGRAM = """
import sys, torch, torch.distributed as dist
from harness.runtime.device import gloo_stubs
rank, name, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.cuda.set_device(0)
store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
mine, both = torch.tensor([rank + 1.0], device="cuda"), torch.tensor([1.0, 2.0], device="cuda")
sent = torch.tensor([rank * 10.0, rank * 10.0 + 1], device="cuda")
if name == "broadcast":
    dist.broadcast(mine, 0); found, right = mine, [1.0]
elif name == "all_reduce":
    dist.all_reduce(mine); found, right = mine, [3.0]
elif name == "all_gather":
    parts = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(parts, mine); found, right = torch.cat(parts), [1.0, 2.0]
elif name == "all_gather_into_tensor":
    found, right = torch.empty_like(both), [1.0, 2.0]
    dist.all_gather_into_tensor(found, mine)
elif name == "reduce_scatter_tensor":
    found, right = torch.empty_like(mine), [2.0 * (rank + 1)]
    dist.reduce_scatter_tensor(found, both)
elif name == "all_to_all_single":
    found, right = torch.empty_like(both), [rank + 0.0, rank + 10.0]
    dist.all_to_all_single(found, sent)
elif name == "coalesced all_reduce":
    gloo_stubs.install()
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(mine)
        dist.all_reduce(both)
    found, right = torch.cat([mine, both]), [3.0, 2.0, 4.0]
elif name == "isend and irecv":
    gloo_stubs.install()
    found, right = torch.empty_like(both), [(1 - rank) * 10.0, (1 - rank) * 10.0 + 1]
    for work in [dist.isend(sent, 1 - rank), dist.irecv(found, 1 - rank)]:
        work.wait()
elif name == "all_gather of parts with different sizes":
    gloo_stubs.install()
    parts = [torch.empty(size, device="cuda") for size in (1, 2)]
    dist.all_gather(parts, mine if rank == 0 else both); found, right = torch.cat(parts), [1.0, 1.0, 2.0]
elif name == "reduce_scatter of parts with different sizes":
    gloo_stubs.install()
    found, right = torch.empty(rank + 1, device="cuda"), [[3.0], [2.0, 4.0]][rank]
    dist.reduce_scatter(found, [mine, both])
assert found.is_cuda and found.tolist() == right, (name, found, right)
dist.barrier()
"""


def free_port() -> int:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "name",
    [
        "broadcast",
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "coalesced all_reduce",
        "isend and irecv",
        "all_gather of parts with different sizes",
        "reduce_scatter of parts with different sizes",
    ],
)
def test_gloo_or_its_stubs_have_the_collectives_that_cells_on_a_shared_gpu_use(name: str) -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(rank), name, port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=HUNG_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said


def cell(layout: Layout, attention: str, dtype: str, data_path: str = "reference") -> CellConfig:
    return CellConfig(
        layout=layout,
        data_path=data_path,
        attention=attention,
        dtype=dtype,
        device="cuda",
        documents=adversarial_mix(64, 2),
        train=TrainConfig(steps=2),
    )


def test_cells_run_on_the_gpu_without_cpu_stubs(tmp_path: Path) -> None:
    ran = run_cells(
        tmp_path,
        {
            "one": cell(Layout(), "reference", "fp32"),
            "kernel": cell(Layout(), "varlen", "bf16"),
            "shared": cell(Layout(tp=2, sp=True), "reference", "fp32"),
            "stages": cell(Layout(pp=2), "reference", "fp32"),
        },
    )
    for name in ("one", "kernel", "shared", "stages"):
        assert ran[name].result.status == "completed", (name, ran[name].records[0].failure)
        for record in ran[name].records.values():
            assert record.cpu_stubs == []
            assert bool(record.gloo_stubs) == (record.environment["backend"] == "gloo")
            assert record.environment["torch_device"].startswith("cuda")
    assert ran["one"].records[0].environment["backend"] == "nccl"
    assert ran["kernel"].records[0].environment["attention"].startswith("torch varlen_attn")
    one, shared = (ran[name].records[0].steps[0].loss_sum for name in ("one", "shared"))
    assert shared == pytest.approx(one, rel=1e-5)
    assert ran["stages"].records[1].steps[0].loss_sum == pytest.approx(one, rel=1e-5)
