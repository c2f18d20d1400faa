from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from harness.core.upstream import CODE, deciding
from harness.runtime.recording.errors import collective_in, frames_of, stack_of

DUMP = """some warning
  File "noise.py", line 3, in a traceback
Timeout (0:00:08)!
Thread 0x00007f01 (most recent call first):
  File "lib/python3.12/threading.py", line 355 in wait

Thread 0x00007f02 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2714 in all_reduce
  File "/x/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/x/site-packages/megatron/core/distributed/finalize_model_grads.py", line 300 in finalize_model_grads
"""


def test_the_stack_of_the_dump_names_the_innermost_collective_and_whose_code_called_it() -> None:
    stack = stack_of(DUMP)
    assert stack == [
        "megatron/core/distributed/finalize_model_grads.py:300 in finalize_model_grads",
        "torch/distributed/c10d_logger.py:83 in wrapper",
        "torch/distributed/distributed_c10d.py:2714 in all_reduce",
    ]
    assert collective_in(stack) == "all_reduce"


def test_the_thread_that_waits_in_a_collective_counts_else_the_last_one() -> None:
    head, middle, waiting = DUMP.partition("Thread 0x00007f02")
    swapped = f"Timeout (0:00:08)!\n{middle}{waiting}\n{head[head.index('Thread') :]}"
    assert collective_in(stack_of(swapped) or []) == "all_reduce"
    busy = DUMP.replace("distributed_c10d.py", "other.py")
    assert (stack_of(busy) or [])[0].startswith("megatron/core/distributed/finalize_model_grads.py")


def test_of_several_dumps_the_last_counts() -> None:
    again = (
        DUMP + '\nTimeout (0:00:09)!\nThread 0x1 (most recent call first):\n  File "/y/pipeline.py", line 9 in work\n'
    )
    assert stack_of(again) == ["pipeline.py:9 in work"]


def test_a_hang_in_the_pipeline_is_named_by_its_function() -> None:
    frames = ["megatron/core/pipeline_parallel/p2p_communication.py:9 in _communicate_shapes"]
    assert collective_in(frames) == "_communicate_shapes"


def test_a_log_without_a_dump_has_no_stack() -> None:
    assert stack_of("") is None
    assert stack_of('Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x\n') is None


def test_a_crash_after_the_dump_does_not_hide_where_the_rank_was() -> None:
    thread = 'Current thread 0x1 (most recent call first):\n  File "/y/a.py", line 9 in x\n'
    died = f"\nFatal Python error: Segmentation fault\n\n{thread}"
    assert stack_of(DUMP + died) == stack_of(DUMP)
    assert stack_of(died) is None


def test_a_script_in_the_root_of_a_checkout_is_code_under_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    script = tmp_path / "pretrain_ours.py"
    script.write_text("def forward_step():\n    raise KeyError('labels')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyError) as caught:
        runpy.run_path(str(script))["forward_step"]()
    assert deciding(frames_of(caught.value)) == (CODE, "./pretrain_ours.py:2 in forward_step")
