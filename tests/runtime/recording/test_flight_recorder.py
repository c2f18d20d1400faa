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

from harness.core.run.run_dir import AttemptDir, write_atomic
from harness.runtime.recording import flight_recorder
from harness.runtime.recording.flight_recorder import dumped, flight_file, pending_collectives, waiting, watch

TP = "TENSOR_MODEL_PARALLEL_GROUP"


def entry(record: int, name: str = "nccl:all_reduce", *, state: str = "scheduled", **more: Any) -> dict[str, Any]:
    """An entry as getCollectiveTrace and dump_json of torch 2.15 write it."""
    return {
        "record_id": record,
        "pg_id": 1,
        "process_group": ["3", TP],
        "thread_name": "pt_main_thread",
        "thread_id": "140",
        "collective_seq_id": 17,
        "p2p_seq_id": 4,
        "op_id": 21,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [[128, 1, 64]],
        "input_dtypes": ["Float"],
        "output_sizes": [[128, 1, 64]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "retired": state == "completed",
        "timeout_ms": 660000,
        "is_p2p": False,
        **more,
    }


def trace(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = {"3": {"name": "3", "desc": TP, "ranks": "[0, 1]"}, "0": {"name": "0", "desc": "default_pg", "ranks": ""}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries), **more}


def said(dump: dict[str, Any]) -> list[str]:
    return [str(found) for found in waiting(dump)]


def test_the_oldest_collective_of_each_group_that_has_not_completed_is_what_a_rank_waits_in() -> None:
    dump = trace(
        entry(7, "nccl:broadcast", state="completed"),
        entry(9, "nccl:all_gather", collective_seq_id=18),
        entry(8),
        entry(
            10, "nccl:barrier", process_group=["0", "default_pg"], collective_seq_id=2, input_sizes=[], state="started"
        ),
    )
    assert said(dump) == [
        f"all_reduce number 17 of group {TP} [0, 1], inputs 128x1x64",
        "barrier number 2 of group default_pg, inputs none",
    ]


def test_messages_between_two_stages_have_their_own_numbers() -> None:
    dump = trace(entry(3, "nccl:recv 1<-0", is_p2p=True, input_sizes=[[2], []]))
    assert said(dump) == [f"recv 1<-0 number 4 of group {TP} [0, 1], inputs 2, scalar"]


def test_ranks_that_wait_in_the_same_collective_say_the_same() -> None:
    one, other = entry(5, thread_id="1", time_created_ns=1), entry(900, thread_id="2", time_created_ns=2)
    assert waiting(trace(one)) == waiting(trace(other, entry(901)))
    assert waiting(trace(one)) != waiting(trace(entry(5, collective_seq_id=18)))


def test_a_retired_entry_is_over_though_it_was_never_seen_complete() -> None:
    assert waiting(trace(entry(3, retired=True))) == []


@pytest.mark.parametrize(
    ("dump", "expected"),
    [
        ({"version": "2.10", "pg_config": {}, "pg_status": {}, "comm_lib_version": ""}, []),  # JSON without entries
        (
            {  # the pickle of torch 2.3
                "version": "2.0",
                "pg_config": {"0": {"name": "0", "desc": "undefined", "ranks": "[0, 1]"}},
                "entries": [
                    {"record_id": 0, "pg_id": 0, "pg_name": "0", "seq_id": 6, "state": "scheduled", "retired": False}
                    | {"profiling_name": "nccl:_all_gather_base", "input_sizes": [[4]], "frames": [{"name": "f"}]}
                ],
            },
            ["_all_gather_base number 6 of group 0 [0, 1], inputs 4"],
        ),
        (
            {
                "version": "1.1",
                "entries": [{"id": 1, "pg_id": 2, "seq_id": 3, "state": "started"}],
            },  # the pickle of torch 2.2
            ["unknown number 3 of group 2, inputs none"],
        ),
        ({"entries": "cut"}, []),
    ],
)
def test_dumps_of_every_release_are_read(dump: dict[str, Any], expected: list[str]) -> None:
    assert said(dump) == expected


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
