from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.edge.run_dir import AttemptDir, needs_room
from harness.node import rank as rank_module
from harness.node.rendezvous import Share
from harness.node.supervisor import _hung_in, _result, _wait
from harness.words.records import RankEnding
from tests.node.conftest import config

DUMP = """Timeout (0:00:08)!
Thread 0x1 (most recent call first):
  File "site-packages/torch/distributed/distributed_c10d.py", line 2714 in all_reduce
  File "site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "megatron/core/distributed/finalize_model_grads.py", line 300 in finalize_model_grads
"""


def test_the_innermost_collective_of_the_dump_is_named(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("some warning\n" + DUMP)
    assert _hung_in(log) == "all_reduce"


def test_a_hang_in_the_pipeline_is_named_by_its_function(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text('  File "megatron/core/pipeline_parallel/p2p_communication.py", line 9 in _communicate_shapes\n')
    assert _hung_in(log) == "_communicate_shapes"


def test_no_dump_names_nothing(tmp_path: Path) -> None:
    assert _hung_in(tmp_path / "missing.log") is None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_rank_that_finds_the_disk_full_says_so_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> NoReturn:
        with needs_room(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rank_module, "run_probe", full)
    monkeypatch.setenv("RANK", "0")
    share = Share(node=0, nodes=1, world_size=1)
    arguments = (str(tmp_path), "cell", config(), 2e9, None, os.getpid(), share)
    process = multiprocessing.get_context("fork").Process(target=rank_module.rank_main, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 28
    assert f"rank 0: cannot write {tmp_path}: No space left on device" in capfd.readouterr().err


def test_a_rank_without_room_for_its_record_is_no_failure_of_the_code(tmp_path: Path) -> None:
    endings = [RankEnding(rank=0, ended="missing", exit_code=1), RankEnding(rank=1, ended="missing", exit_code=28)]
    result = _result("cell", 1, AttemptDir(tmp_path), endings, [], 0.0)
    assert result.status == "error"
    assert result.reason == "2 of 2 ranks did not complete; no room on the disk for the record of rank 1"


class HalfAnErrorFile:
    """torch's processes when a rank that failed was killed before its error file was whole."""

    closed = False

    def wait(self, **_: Any) -> None:
        raise EOFError("Ran out of input")

    def close(self) -> None:
        self.closed = True


def test_a_rank_killed_while_it_wrote_its_error_ends_the_others_and_not_the_supervisor() -> None:
    processes = HalfAnErrorFile()
    _wait(processes, Share(node=0, nodes=1, world_size=2), None)
    assert processes.closed
