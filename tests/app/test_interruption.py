"""A launcher that is interrupted or killed leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.words.outcomes import EXIT_INTERRUPTED
from tests.app.conftest import MATRIX, write_matrix
from tests.processes import await_end, heed_interrupts

pytestmark = pytest.mark.train
# Short cells show that the run is under way; the long ones are running when the signal comes.
LONG = MATRIX.replace("tp: [1, 2]", "train.steps: [2, 20000]\n  tp: [1, 2]")


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_process_is_left(number: signal.Signals, code: int, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        str(write_matrix(tmp_path, LONG)),
        "--run-dir",
        str(tmp_path / "runs"),
    ]
    launcher = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if "done" in line:  # a short cell has ended
            break
    assert [pid for pid in _processes_of(tmp_path) if pid != launcher.pid]
    launcher.send_signal(number)
    launcher.communicate(timeout=60)
    assert launcher.returncode == code
    while left := _processes_of(tmp_path):  # also those that were forked after the signal
        for pid in left:
            await_end(pid)
