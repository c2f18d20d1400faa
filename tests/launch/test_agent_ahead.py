"""An agent that waits for its run, as a process that only writes what it is given."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation
from harness.launch import local
from harness.launch.local import agent_ahead
from tests.processes import await_end

# Says that it imports, names itself in a pipe, and fails in the run that it is given.
AGENT = """
import json, os, sys
print("warning from an import", flush=True)
with open({pipe!r}, "w") as stream:
    stream.write(f"{{os.getpid()}}")
if begin := sys.stdin.readline():
    with open(json.loads(begin)["log"], "a") as log:
        log.write(" ".join(json.loads(begin)["arguments"]))
    sys.exit(1)
"""


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From which a started agent's pid can be read."""

    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setattr(local, "AHEAD_COMMAND", (sys.executable, "-c", AGENT.format(pipe=str(path))))
    return path


def test_it_becomes_the_agent_of_the_first_allocation_in_the_environment_of_the_harness(
    pipe: Path, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    with agent_ahead(tmp_path) as ahead:
        pid = pipe.read_text()
        local.run_allocations(run, [Allocation(name="local", cells=("a",))], {}, print, ahead=ahead)
        assert not ahead.begin([], tmp_path / "log")
    arguments = f"{run.root} local --attached-to "
    log = run.submission("local", ".log").read_text()
    assert log.startswith(f"warning from an import\n{arguments}")
    assert arguments in run.attempt("a").result.read_text()  # the end of the log is the reason
    await_end(int(pid))


def test_without_a_run_it_ends(pipe: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), agent_ahead(tmp_path):
        pid = int(pipe.read_text())
        raise ValueError("refused")
    await_end(pid)


def test_one_that_has_ended_is_replaced(pipe: Path, tmp_path: Path) -> None:

    with agent_ahead(tmp_path) as ahead:
        pid = int(pipe.read_text())
        os.kill(pid, signal.SIGKILL)
        await_end(pid)
        assert not ahead.begin([], tmp_path / "log")


def test_one_that_has_begun_is_left_to_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "import sys, time; sys.stdin.readline(); time.sleep(3600)"
    monkeypatch.setattr(local, "AHEAD_COMMAND", (sys.executable, "-c", waits))
    with agent_ahead(tmp_path) as ahead:
        process = ahead.begin(["run"], tmp_path / "log")
        assert not ahead.begin(["run"], tmp_path / "log")
    assert process and process.poll() is None
    process.kill()
    process.wait()
