"""docs/examples/nightly.sh on a cluster: killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.core.run.events import read_lines
from tests.docs.projects import settings, small_project
from tests.processes import await_end
from tests.slurm.lab import SlurmLab


def children(process: int) -> list[int]:
    return [int(name) for name in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def submitted(home: Path) -> list[dict[str, Any]]:
    files = list(home.glob("runs/nightly-2*/events.jsonl"))
    return [event for file in files for event in read_lines(file) if event["event"] == "submitted"]


def exported(home: Path, script: Path, listing: str) -> list[dict[str, Any]]:
    harness = script.parents[2] / ".venv" / "bin" / "harness"
    command = [harness, "history", "export", listing, "--format", "json", "--run-dir", home / "runs"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slurm
@pytest.mark.train
def test_a_killed_night_continues_where_it_stopped_and_notifies_once(lab: SlurmLab, tmp_path: Path, root: Path) -> None:
    script = small_project(tmp_path, root)
    sent = tmp_path / "sent"
    receiver = f"sh -c 'cat > /dev/null; echo $HARNESS_RUN_ID $HARNESS_EXIT_CODE >> {sent}'"
    environment = {**settings(tmp_path, CLUSTER="slurm-lab", NOTIFY=receiver), **lab.environment}

    def again(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [script, *arguments]
        return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    with (tmp_path / "first.log").open("wb") as log:
        night = subprocess.Popen([script], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    lab.wait_for(lambda: submitted(tmp_path), 120, "the night's job is submitted")
    (launcher,) = children(night.pid)
    assert again("--resume").returncode == 75  # the first night still holds the lock
    for process in (night.pid, launcher):
        os.kill(process, signal.SIGKILL)
    night.wait()
    await_end(launcher)
    (run,) = tmp_path.glob("runs/nightly-2*")
    assert not (run / "report.json").exists()

    done = again("--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{run} was interrupted: follow and judge it" in done.stdout
    assert "resumed with exit code 0" in done.stdout
    assert json.loads((run / "report.json").read_text())["counts"]["PASS"] == 2
    done = again("--resume")
    assert (done.returncode, done.stdout) == (0, "")  # nothing left to do

    assert list(tmp_path.glob("runs/nightly-2*")) == [run]
    assert len(submitted(tmp_path)) == 1
    assert sent.read_text() == f"{run.name} 0\n"
    (row,) = exported(tmp_path, script, "runs")
    assert (row["run_id"], row["verdict"], row["pass"]) == (run.name, "pass", 2)
