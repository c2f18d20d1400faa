from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from harness.core.run.flight_dump import waiting
from harness.core.run.run_dir import AttemptDir, write_atomic
from harness.node.recording import flight_recorder
from harness.node.recording.flight_recorder import dumped, flight_file, pending_collectives, watch
from tests.core.run.test_flight_dump import entry, trace

# Two ranks over gloo, whose collectives torch 2.15 also records. Rank 1 enters no collective.
PROGRAM = """
import os, sys, json, threading, time, torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d
child = os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
group = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
if rank == 1:
    sys.stdin.read()
    os._exit(0)
dist.all_reduce(torch.ones(3, 4), group=group, async_op=True)
print(c10d._dump_fr_trace_json().decode(), flush=True)
os._exit(0)
"""


def test_the_recorder_of_this_torch_is_read_and_names_the_collective_that_one_rank_never_entered(
    tmp_path: Path,
) -> None:
    if not hasattr(c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch records only NCCL's collectives")
    ran = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ran.stdout is not None
    found = waiting(json.loads(ran.stdout.readline()))
    ran.communicate()
    assert [(item.name, item.sizes) for item in found] == [("all_reduce", ((3, 4),))]
    assert found[0].group.startswith("TENSOR_MODEL_PARALLEL_GROUP")


def test_this_torch_has_one_of_the_dump_functions() -> None:
    assert dumped(c10d) is not None
    assert waiting(dumped(c10d) or {}) == []


@pytest.mark.parametrize(
    "functions",
    [
        {"_dump_nccl_trace_json": lambda: json.dumps(trace(entry(1))).encode()},
        {"_dump_nccl_trace": lambda: pickle.dumps(trace(entry(1)))},
    ],
)
def test_json_is_read_and_pickle_if_a_release_has_no_json(functions: dict[str, Any]) -> None:
    assert dumped(SimpleNamespace(**functions)) == trace(entry(1))
    assert dumped(SimpleNamespace()) is None


def test_a_rank_over_nccl_leaves_its_dump_before_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(flight_recorder, "dumped", lambda module: trace(entry(1)))
    attempt = AttemptDir(tmp_path)
    watch(attempt, 3, time.time()).join()
    assert [item.name for item in pending_collectives(attempt, 3)] == ["all_reduce"]
    assert flight_file(attempt, 3).parent == attempt.log(3).parent
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    watch(attempt, 4, time.time()).join()
    assert not flight_file(attempt, 4).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": 3}'])
def test_a_truncated_dump_counts_as_none(text: str, tmp_path: Path) -> None:
    write_atomic(flight_file(AttemptDir(tmp_path), 0), text)
    assert pending_collectives(AttemptDir(tmp_path), 0) == []
    assert pending_collectives(AttemptDir(tmp_path), 1) == []
