"""When the agent of a run is started, with a process that waits and imports nothing in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pytest

from harness.app import cli
from harness.app.pipeline import local_run, plan_run
from harness.app.pipeline.finalize import judge_and_report
from harness.core.errors import InputError
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED
from harness.core.run.events import CellStarted, read_events
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import read_work_order
from harness.infra import local_launcher
from harness.infra.local_launcher import AgentAhead
from harness.infra.runs.evidence_files import read_plan, run_problems
from harness.infra.runs.lock import launcher_of
from harness.plan.expansion import expand
from tests.app.conftest import MATRIX, only_run, write_matrix


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

    monkeypatch.setattr(local_launcher, "AHEAD_COMMAND", (sys.executable, "-c", "import sys; sys.stdin.read()"))
    monkeypatch.setattr(local_launcher, "AgentAhead", Started)
    monkeypatch.setattr(plan_run, "expand_for", refuse)
    assert cli.main(["run", str(matrix), "--run-dir", str(tmp_path / "runs")]) == InputError.exit_code
    assert "refused" in capsys.readouterr().err
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert list(tmp_path.iterdir()) == [matrix]


# Starts the cell that it is given, says so through a pipe, and ends when its work order is complete.
AGENT = """
import json, sys, time
from pathlib import Path
run = Path(json.loads(sys.stdin.readline())["arguments"][0])
order = run / "submissions" / "local.json"
(cell,) = json.loads(order.read_text())["cells"]
(run / "agents").mkdir()
event = {{"event": "cell_started", "time": time.time(), "ranks": 1, **cell}}
(run / "agents" / "local.0.jsonl").write_text(json.dumps(event) + "\\n")
Path({pipe!r}).write_text(cell["cell"])
limit = time.monotonic() + 600
while json.loads(order.read_text()).get("more") and time.monotonic() < limit:
    time.sleep(0.01)
"""


def test_the_first_of_many_cells_starts_before_the_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, runs, begun = tmp_path / "pipe", tmp_path / "runs", list[str]()
    os.mkfifo(pipe)
    name_cells = expand.apply_rules

    def named(*arguments: Any, first: bool = False, **options: Any) -> Any:
        if not first:  # all of them
            assert list(runs.glob("*/submissions/local.json"))
            begun.append(pipe.read_text())  # returns once the first cell has started
            assert not list(runs.glob("*/plan.json"))
        return name_cells(*arguments, first=first, **options)

    def judged(run: RunDir, *arguments: Any) -> int:
        assert launcher_of(run) is None
        return judge_and_report(run, *arguments)

    monkeypatch.setattr(local_run, "judge_and_report", judged)
    monkeypatch.setattr(local_launcher, "AHEAD_COMMAND", (sys.executable, "-c", AGENT.format(pipe=str(pipe))))
    monkeypatch.setattr(local_run, "MOST_TOGETHER", 3)
    monkeypatch.setattr(expand, "apply_rules", named)
    code = cli.main(["run", str(write_matrix(tmp_path)), "--run-dir", str(runs), "--no-history"])
    assert code == EXIT_UNDECIDED  # this agent writes no results
    run = RunDir(only_run(runs))
    plan = read_plan(run)
    assert run.root.name == plan.run_id
    assert begun == [event.cell for event in read_events(run.events) if isinstance(event, CellStarted)]
    assert begun == [plan.allocations[0].cells[0]]
    assert [item.cell for item in read_work_order(run, "local").cells] == list(plan.allocations[0].cells)
    assert not run_problems(run, plan)


def test_a_plan_without_the_cell_that_began_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_launcher, "AHEAD_COMMAND", (sys.executable, "-c", "import sys; sys.stdin.read()"))
    monkeypatch.setattr(local_run, "MOST_TOGETHER", 3)
    source = read_source_of(write_matrix(tmp_path))
    plan = plan_run.plan_run(plan_run.PlanRequest(matrix=tmp_path / "small.yaml"), source).plan
    cell = plan.expansion.cells[0]
    with ExitStack() as held:
        early = local_run.EarlyStart(RunDir(tmp_path / "runs" / plan.run_id), source, held)
        early.begin(cell, 4)
        early.check(plan)
        early.first = replace(cell, config=replace(cell.config, deadline_s=1.0))
        with pytest.raises(RuntimeError, match=cell.id):
            early.check(plan)


@pytest.mark.parametrize("change", ["xfail: [{pattern: tp1-*, reason: known}]", "select: {covering: 2}"])
def test_no_cell_starts_early_when_the_names_of_all_decide_whether_the_matrix_is_right(
    change: str, tmp_path: Path
) -> None:
    matrix = read_source_of(write_matrix(tmp_path, MATRIX + change + "\n")).matrix
    expand.expand(matrix, begin=lambda cell, combinations: pytest.fail(cell.id))


@pytest.mark.parametrize("options", [["--dry-run"], ["--cluster", "slurm-lab", "--dry-run"]])
def test_where_no_agent_will_run_none_is_started(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_launcher, "AHEAD_COMMAND", ())
    assert cli.main(["run", str(write_matrix(tmp_path)), "--run-dir", str(tmp_path / "runs"), *options]) == EXIT_PASS


def test_an_agent_ahead_is_only_for_runs_here_in_the_environment_of_the_harness(tmp_path: Path) -> None:
    of_stacks = MATRIX.replace("  tp:", "  stack: [default, other]\n  tp:") + "stacks: {other: {python: /other}}\n"
    for text, cluster, here in ((MATRIX, None, True), (MATRIX, "slurm-lab", False), (of_stacks, None, False)):
        assert read_source_of(write_matrix(tmp_path, text), cluster).here is here


def read_source_of(matrix: Path, cluster: str | None = None) -> plan_run.Source:
    return plan_run.read_source(plan_run.PlanRequest(matrix=matrix, cluster=cluster))
