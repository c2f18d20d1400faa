"""Temporary files of torch elastic are removed with the cell, and processes end at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

from harness.runtime.process import end_session, temporary_files_in
from tests.processes import HUNG_S


def _rank(fails: bool) -> None:
    if fails:
        os._exit(3)


@pytest.mark.parametrize("fails", [False, True])
def test_forked_ranks_leave_no_temporary_file(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "system"
    system.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(system))
    with temporary_files_in(tmp_path / "own"):
        processes = start_processes(
            name="cell",
            entrypoint=_rank,
            args={0: (fails,), 1: (False,)},
            envs={0: {}, 1: {}},
            logs_specs=DefaultLogsSpecs(),
            start_method="fork",
        )
        made = [path.name for path in (tmp_path / "own").iterdir()]
        ended = processes.wait(timeout=HUNG_S)
    assert any(name.startswith("torchelastic_") for name in made)
    assert ended is not None
    assert ended.is_failed() is fails
    assert list(tmp_path.rglob("*")) == [system]
    assert tempfile.gettempdir() == str(system)


def test_a_process_ends_with_its_output_and_exit_code_and_without_cleanup() -> None:
    code = "import atexit; from harness.runtime.process import end_process; atexit.register(print, 'cleanup')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('out', end=''); end_process(7)"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "out", "")


def _leads(says: int) -> None:
    """A supervisor whose rank has left a process behind, which ignores SIGTERM."""
    os.setsid()
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    left = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert left.stdout is not None
    left.stdout.readline()
    end_session()
    os.write(says, str(left.wait()).encode())


def test_no_process_of_a_session_outlives_its_ranks() -> None:
    reads, says = os.pipe()
    supervisor = multiprocessing.get_context("fork").Process(target=_leads, args=(says,))
    supervisor.start()
    supervisor.join()
    os.close(says)
    with os.fdopen(reads) as pipe:
        assert (supervisor.exitcode, pipe.read()) == (0, str(-signal.SIGKILL))


def _leads_nothing() -> None:
    with pytest.raises(RuntimeError, match="does not lead session"):
        end_session()


def test_the_session_of_another_process_is_left_alone() -> None:
    process = multiprocessing.get_context("fork").Process(target=_leads_nothing)
    process.start()
    process.join()
    assert process.exitcode == 0
