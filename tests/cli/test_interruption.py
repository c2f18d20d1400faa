"""A launcher that is interrupted or killed leaves no process behind, and its run can be resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.outcomes import EXIT_INTERRUPTED, EXIT_PASS
from tests.cli.conftest import MATRIX, harness, only_run, write_matrix
from tests.processes import HUNG_S, await_end, heed_interrupts

pytestmark = pytest.mark.train
# The end of a short cell shows that the run is under way; the long ones are running when the signal comes.
LONG = MATRIX.replace("tp: [1, 2]", "train.steps: [2, 8000]\n  tp: [1, 2]") + "launch: {deadline_s: 900}\n"


def _processes_of(run_parent: Path) -> list[int]:
    """Pids of live processes whose command line names the folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if str(run_parent).encode() in command:
            found.append(int(folder.name))
    return found


def interrupted(number: signal.Signals, tmp_path: Path, matrix: str = LONG) -> tuple[int, str]:
    """Send a signal to a run once a short cell has ended; returns the run's exit code and stderr."""
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        str(write_matrix(tmp_path, matrix)),
        "--run-dir",
        str(tmp_path / "runs"),
    ]
    with (tmp_path / "stderr").open("w+") as said:
        launcher = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=said, text=True, preexec_fn=heed_interrupts
        )
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if "done" in line:  # a short cell has ended
                break
        assert [pid for pid in _processes_of(tmp_path) if pid != launcher.pid]
        status = harness("status", "latest", "--run-dir", tmp_path / "runs", cwd=tmp_path).stdout
        assert f"Launcher: pid {launcher.pid} on" in status
        launcher.send_signal(number)
        launcher.communicate(timeout=HUNG_S)
        said.seek(0)
        return launcher.returncode, said.read()


def _all_gone(parent: Path) -> None:
    while left := _processes_of(parent):  # including those forked after the signal
        for pid in left:
            await_end(pid)


def _status_after(run: Path, parent: Path) -> str:
    status = harness("status", run, cwd=parent).stdout
    assert "Launcher: ended" in status
    assert "running: " not in status
    return status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # SIGHUP: tests/cli/test_signals.py
def test_no_process_is_left_what_finished_is_judged_and_the_message_says_how_to_resume(
    number: signal.Signals, tmp_path: Path
) -> None:
    ended, said = interrupted(number, tmp_path)
    assert ended == EXIT_INTERRUPTED
    _all_gone(tmp_path)
    run = only_run(tmp_path / "runs")
    assert "interrupted: " in _status_after(run, tmp_path)
    assert f"ended by {number.name}" in said
    assert f"harness resume {run.relative_to(tmp_path)}" in said
    assert "Traceback" not in said
    counts = json.loads((run / "report.json").read_text())["counts"]
    assert counts["PASS"] + counts["NOT_RUN"] == 10
    assert counts["NOT_RUN"] > 0


def test_a_run_whose_launcher_was_killed_is_resumed_and_no_cell_trains_twice(tmp_path: Path) -> None:
    matrix = LONG.replace("8000", "12")
    assert interrupted(signal.SIGKILL, tmp_path, matrix)[0] == -signal.SIGKILL
    _all_gone(tmp_path)
    run = only_run(tmp_path / "runs")
    _status_after(run, tmp_path)
    before = {path: path.read_bytes() for path in run.glob("cells/*/attempt-*/result.json")}
    assert 0 < len(before) < 10
    done = harness("resume", run, "--no-history", cwd=tmp_path)
    assert done.returncode == EXIT_PASS, done.stdout + done.stderr
    assert f"running {10 - len(before)} of 10 cells" in done.stdout
    assert "10 PASS" in done.stdout  # an attempt that died with its launcher does not count as a retry
    assert {path: path.read_bytes() for path in before} == before
    again = harness("resume", run, "--no-history", cwd=tmp_path)
    assert "running 0 of 10 cells" in again.stdout
