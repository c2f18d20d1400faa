from __future__ import annotations

from typing import Any

import pytest

from harness.core.run.flight_dump import waiting

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
