"""What a soak notices of a run; the soaks run for an hour (bench_soak.py)."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.campaign.judging import judge
from harness.campaign.reports import write_reports
from harness.core.run.events import CellFinished, append_event
from harness.core.run.run_dir import RunDir
from harness.runs.evidence_files import read_plan
from tests.cli.runs import simulated_run

MODULES = ("bench_soak", "soak_faults", "slurm_figures", "figures")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
        yield importlib.import_module("bench_soak")
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def soak(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "work/tmp").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "work/tmp"))
    monkeypatch.setattr(bench, "LEFT_S", 0.0)
    return bench.Soak(
        work=tmp_path / "work", matrix="m.yaml", options=(), lab=None, every_s=None, draw=random.Random(1)
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = simulated_run(tmp_path / "runs")
    plan = read_plan(made)
    write_reports(made, judge(made, plan))
    for cell in plan.expansion.cells:
        append_event(made.events, CellFinished(time=2.0, cell=cell.id, attempt=1, status="completed"))
    return made


def edit(run: RunDir, change: Callable[[list[dict[str, Any]]], object]) -> None:
    file = run.root / "report.json"
    report = json.loads(file.read_text())
    change(report["cells"])
    file.write_text(json.dumps(report))


def test_a_run_without_trouble_has_none(bench: ModuleType, soak: Any, run: RunDir) -> None:
    bench.reported(soak, 1, run.root, set())
    bench.check(soak, 1, run.root)
    assert soak.bad == []


def test_cells_that_are_not_judged_once_are_named(bench: ModuleType, soak: Any, run: RunDir) -> None:
    edit(run, lambda cells: cells.append(cells[2]))
    edit(run, lambda cells: cells.pop(1))
    lost, doubled = (read_plan(run).expansion.cells[number].id for number in (1, 2))
    append_event(run.events, CellFinished(time=3.0, cell=lost, attempt=1, status="completed"))
    bench.check(soak, 1, run.root)
    assert soak.bad == [f"run 1: planned but not judged: {lost}", f"run 1: twice: {doubled}, {lost} attempt 1"]


@pytest.mark.parametrize(("outcome", "struck", "bad"), [("FAIL", True, 1), ("ERROR", False, 1), ("ERROR", True, 0)])
def test_an_outcome_that_no_fault_explains_is_a_false_alarm(
    bench: ModuleType, soak: Any, run: RunDir, outcome: str, struck: bool, bad: int
) -> None:
    cell = read_plan(run).expansion.cells[1].id
    edit(run, lambda cells: cells[1].update(outcome=outcome))
    bench.reported(soak, 1, run.root, {cell} if struck else set())
    assert len(soak.bad) == bad
    assert all(f"{outcome} {cell}" in text for text in soak.bad)


def test_what_is_left_over_is_named_and_removed(bench: ModuleType, soak: Any, run: RunDir) -> None:
    file = soak.work / "tmp" / "left"
    file.touch()
    waiting = [sys.executable, "-c", "print(flush=True); input()", str(run.root)]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()  # its command line is empty for a moment
        bench.check(soak, 1, run.root)
        assert process.wait() == -9
    assert [text.partition(":")[2].split()[0] for text in soak.bad] == ["process", "temporary"]
    assert not file.exists()
