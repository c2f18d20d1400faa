"""When the agent of a run is started, with a process that waits and imports nothing in its place."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

import pytest

from harness.campaign import plan_run
from harness.campaign.options import PlanOptions
from harness.cli import cli
from harness.core.errors import InputError
from harness.core.outcomes import EXIT_PASS
from harness.launch import local
from harness.launch.local import AgentAhead
from tests.cli.conftest import MATRIX, write_matrix


def test_the_agent_starts_before_the_cells_are_named_and_ends_if_they_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix, started = write_matrix(tmp_path), list[subprocess.Popen[bytes]]()

    def refuse(*_: object) -> NoReturn:
        assert [process.poll() for process in started] == [None]
        raise InputError("refused")

    class Started(AgentAhead):
        def __init__(self, run_parent: Path, output: BinaryIO) -> None:
            super().__init__(run_parent, output)
            started.append(self._process)

    monkeypatch.setattr(local, "AHEAD_COMMAND", (sys.executable, "-c", "import sys; sys.stdin.read()"))
    monkeypatch.setattr(local, "AgentAhead", Started)
    monkeypatch.setattr(plan_run, "expand_for", refuse)
    assert cli.main(["run", str(matrix), "--run-dir", str(tmp_path / "runs")]) == InputError.exit_code
    assert "refused" in capsys.readouterr().err
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert list(tmp_path.iterdir()) == [matrix]


@pytest.mark.parametrize("options", [["--dry-run"], ["--cluster", "slurm-lab", "--dry-run"]])
def test_where_no_agent_will_run_none_is_started(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "AHEAD_COMMAND", ())
    assert cli.main(["run", str(write_matrix(tmp_path)), "--run-dir", str(tmp_path / "runs"), *options]) == EXIT_PASS


def test_an_agent_ahead_is_only_for_runs_here_in_the_environment_of_the_harness(tmp_path: Path) -> None:
    of_stacks = MATRIX.replace("  tp:", "  stack: [default, other]\n  tp:") + "stacks: {other: {python: /other}}\n"
    for text, cluster, here in ((MATRIX, None, True), (MATRIX, "slurm-lab", False), (of_stacks, None, False)):
        assert read_source_of(write_matrix(tmp_path, text), cluster).here is here


def read_source_of(matrix: Path, cluster: str | None = None) -> plan_run.Source:
    return plan_run.read_source(matrix, PlanOptions(cluster=cluster))
