from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from harness.core.cell.layout import Coordinates, Layout
from harness.core.errors import STORAGE_EXIT
from harness.core.run.record_file import write_record
from harness.core.run.records import CellResult, Failure, RankEnding, RankRecord
from harness.core.run.run_dir import AttemptDir, RunDir, needs_room, write_json
from harness.core.serialization import from_jsonable, loads
from harness.judge.evidence.endings import endings_of
from harness.judge.failures.classification import Cause, cause_of
from harness.runtime import rank as rank_module
from harness.runtime.agent import ANNOUNCING
from harness.runtime.coordination.rendezvous import HeartbeatMonitor, NodeShare
from harness.runtime.deadline import DUMP, Deadline
from harness.runtime.rank_endings import cell_result, rank_endings
from harness.runtime.recording import flight_recorder
from harness.runtime.recording.recorder import Recorder, progress_file
from harness.runtime.supervisor import _wait, supervise
from tests.runtime.conftest import config, upstream_module
from tests.runtime.recording.test_flight_recorder import entry, trace


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_rank_that_finds_the_disk_full_exits_with_code_28(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> NoReturn:
        with needs_room(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rank_module, "run_probe", full)
    monkeypatch.setenv("RANK", "0")
    share = NodeShare(node=0, nodes=1, world_size=1)
    arguments = (str(tmp_path), "cell", config(), 2e9, None, os.getpid(), share)
    process = multiprocessing.get_context("fork").Process(target=rank_module.rank_main, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 28
    assert f"rank 0: cannot write {tmp_path}: No space left on device" in capfd.readouterr().err


def test_a_node_that_is_lost_after_its_ranks_completed_is_an_error_that_names_it(tmp_path: Path) -> None:
    endings = [RankEnding(rank=rank, ended="completed", exit_code=0) for rank in range(2)]
    for rank in range(2):
        place = Coordinates(tp=rank, cp=0, dp=0, pp=0)
        write_record(
            AttemptDir(tmp_path).record(rank), RankRecord(cell="cell", rank=rank, place=place, ended="completed")
        )
    trouble = "node 1 sent no heartbeats and wrote no result"
    result = cell_result("cell", 1, AttemptDir(tmp_path), endings, [trouble], 0.0, deadline_s=60.0)
    assert (result.status, result.reason) == ("error", trouble)


def test_a_full_disk_is_not_a_failure_of_the_code_under_test(tmp_path: Path) -> None:
    endings = [RankEnding(rank=0, ended="missing", exit_code=1), RankEnding(rank=1, ended="missing", exit_code=28)]
    result = cell_result("cell", 1, AttemptDir(tmp_path), endings, [], 0.0, deadline_s=60.0)
    assert result.status == "error"
    assert result.reason == "2 of 2 ranks did not complete; no space left on the disk for the record of rank 1"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_rank_dumps_its_stacks_when_the_deadline_has_passed_on_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not when Slurm announces the end of the job, to every process: a dump can crash a rank that still runs."""
    started = multiprocessing.get_context("fork").Pipe()

    def probe(*_: Any) -> None:
        started[1].send("")
        signal.pause()

    monkeypatch.setattr(rank_module, "run_probe", probe)
    monkeypatch.setenv("RANK", "0")
    share = NodeShare(node=0, nodes=1, world_size=1)
    arguments = (str(tmp_path), "cell", config(), 2e9, None, os.getpid(), share)
    process = multiprocessing.get_context("fork").Process(target=_rank, args=arguments)
    process.start()
    started[0].recv()
    log = AttemptDir(tmp_path).log(0)
    for number in ANNOUNCING:
        os.kill(process.pid or 0, number)
    assert "most recent call first" not in log.read_text()
    os.kill(process.pid or 0, DUMP)
    while "most recent call first" not in log.read_text():
        assert process.is_alive()
    process.kill()
    process.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_the_flight_recorder_of_a_hung_rank_names_the_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With NCCL the stack shows only that the rank waits for the GPU."""
    attempt = AttemptDir(tmp_path)

    def probe(*_: Any) -> None:
        while not flight_recorder.flight_file(attempt, 0).exists() and time.time() < deadline_at + 10:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(rank_module, "run_probe", probe)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(flight_recorder, "dumped", lambda module: trace(entry(1)))
    monkeypatch.setenv("RANK", "0")
    deadline_at = time.time() + flight_recorder.EARLY_S + 0.1
    share = NodeShare(node=0, nodes=1, world_size=1)
    arguments = (str(tmp_path), "cell", config(deadline_s=5.0), deadline_at, None, os.getpid(), share)
    process = multiprocessing.get_context("fork").Process(target=_rank, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (ending,) = rank_endings(attempt, [0], {0: -signal.SIGKILL}, {0: time.time()})
    assert (ending.ended, ending.hang, len(ending.flight)) == ("deadline", "all_reduce", 1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_the_ranks_of_a_cell_see_only_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(*_: Any) -> None:
        (tmp_path / f"gpus-{os.environ['RANK']}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    monkeypatch.setattr(rank_module, "run_probe", probe)
    share = NodeShare(node=0, nodes=1, world_size=2, gpus=(1, 2))
    monitor = HeartbeatMonitor(RunDir(tmp_path), "local", [])
    arguments = (str(tmp_path), "cell", 1, config(tp=2), os.getpid(), time.time() + 60, share, monitor)
    process = multiprocessing.get_context("fork").Process(target=_supervise, args=arguments)
    process.start()
    process.join()
    assert [(tmp_path / f"gpus-{rank}").read_text() for rank in (0, 1)] == ["GPU-b,GPU-c"] * 2


def _rank(*arguments: Any) -> None:
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    signal.pthread_sigmask(signal.SIG_BLOCK, ANNOUNCING)  # as inherited from the agent
    rank_module.rank_main(*arguments)


class HalfAnErrorFile:
    """Fake of torch's processes when a failed rank was killed before its error file was complete."""

    closed = False

    def wait(self, **_: Any) -> None:
        raise EOFError("Ran out of input")

    def close(self) -> None:
        self.closed = True


def test_a_rank_killed_while_it_wrote_its_error_ends_the_others_and_not_the_supervisor() -> None:
    processes = HalfAnErrorFile()
    _wait(processes, NodeShare(node=0, nodes=1, world_size=2), None, Deadline(2e9))
    assert processes.closed


TWO = Layout(tp=2, sp=True)


def _read(root: Path) -> tuple[CellResult, dict[int, RankRecord], Cause | None]:
    """The result and records that a supervisor wrote for a cell of two ranks, and the cause of its failure."""
    attempt = AttemptDir(root)
    result = from_jsonable(CellResult, loads(attempt.result.read_text()))
    records = {rank: from_jsonable(RankRecord, loads(attempt.record(rank).read_text())) for rank in (0, 1)}
    return result, records, cause_of(endings_of(TWO, records, result, deadline_s=5.0), result)


def _supervise(*arguments: Any) -> None:
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # pytest's replacements ignore redirected descriptors
    supervise(*arguments)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Attempts, run side by side, in which rank 0 waits in a barrier that rank 1 never enters."""
    roots = {how: tmp_path_factory.mktemp(how) for how in ("dies", "raises", "frozen", "stale", "unwritable")}
    upstream = upstream_module(tmp_path_factory.mktemp("upstream"), "def sleep(seconds):\n    time.sleep(seconds)\n")
    began = time.time()
    deadline_at = began + 12.0

    def probe(how: str, recorder: Recorder) -> None:
        rank = recorder.record.rank
        recorder.progress("training", 1, 0, "forward")
        os.utime(progress_file(AttemptDir(roots[how]).record(rank)), (began, began))  # however late a busy node forks
        dist.init_process_group("gloo", store=dist.FileStore(str(roots[how] / "store"), 2), rank=rank, world_size=2)
        if rank == 0:
            dist.barrier()
        if how == "frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how in ("stale", "unwritable"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "pwrite", _stale)
                if how == "unwritable":
                    patch.setattr(Path, "replace", _stale)
                    patch.undo = lambda: None  # keep the patches until the process ends
                recorder.progress("training", 1, 0, "backward")
        upstream.sleep(max(deadline_at + 0.3 - time.time(), 0))  # by then its stack has been dumped
        if how == "raises":
            raise ValueError("a consequence")
        os.kill(os.getpid(), signal.SIGSEGV)  # a crash that the stack dump may cause

    def start(how: str) -> BaseProcess:
        share, monitor = NodeShare(node=0, nodes=1, world_size=2), HeartbeatMonitor(RunDir(roots[how]), "local", [])
        arguments = (str(roots[how]), "cell", 1, config(tp=2, deadline_s=5.0), os.getpid(), deadline_at, share, monitor)
        process = multiprocessing.get_context("fork").Process(target=_supervise, args=arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rank_module, "run_probe", lambda config, place, recorder, listener: probe(how, recorder))
            process.start()
        return process

    for process in [start(how) for how in roots]:
        process.join()
        assert process.exitcode == 0
    return roots


@pytest.mark.slow
def test_a_frozen_rank_is_infrastructure_though_others_wait_for_it(late: dict[str, Path]) -> None:
    result, _, cause = _read(late["frozen"])
    assert [ending.ended for ending in result.ranks] == ["deadline", "deadline"]
    assert result.ranks[0].hang == "barrier"
    assert result.ranks[1].stack is None
    assert cause is not None
    assert (cause.domain, cause.ending.rank) == ("infrastructure", 1)
    assert "rank 1 left no stack at the deadline" in cause.message
    assert "waiting for it: barrier (rank 0)" in cause.message


def test_a_storage_error_on_a_progress_file_is_infrastructure(late: dict[str, Path]) -> None:
    result, records, cause = _read(late["stale"])
    assert result.status == "failed"
    assert records[1].failure is not None
    assert (records[1].failure.errno, records[1].failure.frames[-1].partition(":")[0]) == (
        "ESTALE",
        "tests/runtime/test_supervisor.py",
    )
    assert cause is not None
    assert (cause.domain, cause.ending.rank) == ("infrastructure", 1)


def test_a_rank_that_cannot_even_write_its_record_is_infrastructure(late: dict[str, Path]) -> None:
    result, _, cause = _read(late["unwritable"])
    assert result.ranks[1].exit_code == STORAGE_EXIT
    assert (result.status, result.reason) == (
        "error",
        "2 of 2 ranks did not complete; a storage error prevented the record of rank 1",
    )
    assert cause is not None
    assert cause.domain == "infrastructure"


def _stale(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(("how", "exit_code"), [("dies", -signal.SIGSEGV), ("raises", None)])
def test_a_failure_after_the_deadline_does_not_change_the_verdict_of_a_hang(
    late: dict[str, Path], how: str, exit_code: int | None
) -> None:
    result, records, cause = _read(late[how])
    assert [ending.ended for ending in result.ranks] == ["deadline", "deadline"]
    assert [record.failure for record in records.values()] == [None, None]
    assert result.ranks[0].hang == "barrier"
    assert exit_code in (None, result.ranks[1].exit_code)
    assert cause is not None
    assert cause.blames_code
    assert cause.message.startswith("hang in barrier (rank 0)")


def test_an_exception_before_the_deadline_counts_and_a_later_one_does_not(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path)
    for rank, when in enumerate((99.0, 101.0)):
        failure = Failure(type="ValueError", message="m", traceback="", time=when)
        record = RankRecord(cell="c", rank=rank, place=TWO.coordinates(rank), ended="raised", failure=failure)
        write_json(attempt.record(rank), record)
    endings = rank_endings(attempt, [0, 1], {0: 1, 1: 1}, {0: 100.0, 1: 100.0})
    assert [ending.ended for ending in endings] == ["raised", "deadline"]


def test_a_rank_that_died_before_the_deadline_counts_as_killed(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path)
    for rank in (0, 1):
        write_json(attempt.record(rank), RankRecord(cell="c", rank=rank, place=TWO.coordinates(rank)))
    assert [ending.ended for ending in rank_endings(attempt, [0, 1], {0: -11, 1: -9}, {1: 100.0})] == [
        "killed",
        "deadline",
    ]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_no_secret_that_the_code_under_test_prints_or_raises_is_left_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_value, by_place = "hunter2-hunter2", "https://me:swordfish@host/data"

    def probe(*_: Any) -> NoReturn:
        print(f"opening {by_place} with {by_value}")
        os.write(2, b"\xff as C++ code writes: " + by_value.encode() + b"\n")
        raise ValueError(f"cannot open {by_place} with {by_value}")

    monkeypatch.setenv("DATA_PASSWORD", by_value)
    monkeypatch.setattr(rank_module, "run_probe", probe)
    share, monitor = NodeShare(node=0, nodes=1, world_size=1), HeartbeatMonitor(RunDir(tmp_path), "local", [])
    arguments = (str(tmp_path), "cell", 1, config(), os.getpid(), time.time() + 60, share, monitor)
    process = multiprocessing.get_context("fork").Process(target=_supervise, args=arguments)
    process.start()
    process.join()
    files = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {Path("result.json"), Path("ranks/rank-00000.json"), Path("log/rank-00000.log")} <= files.keys()
    assert [name for name, held in files.items() if by_value.encode() in held or b"swordfish" in held] == []
    log = files[Path("log/rank-00000.log")]
    assert b"opening https://***@host/data with ***" in log
    assert b"\xff as C++ code writes: ***\n" in log
    assert b"Traceback (most recent call last)" in log
    assert b"ValueError: cannot open https://***@host/data with ***" in log
    record = from_jsonable(RankRecord, loads(AttemptDir(tmp_path).record(0).read_text()))
    assert record.failure is not None
    assert record.failure.message == "cannot open https://***@host/data with ***"
