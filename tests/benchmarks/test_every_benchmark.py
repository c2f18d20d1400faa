"""Every benchmark measures something at its smallest size; how long it takes is not asserted."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
PLAIN = ("cli", "plan", "history", "scale")
TRAINING = ("smoke", "overhead")
# Not in CI: the first five run cells as smoke does, two build stacks, and scale judges more than judge does.
LONG = ("start", "thousand", "legs", "repeats", "soak", "stacks", "calm", "judge")
# These need a clone of Megatron-LM, or a cluster; their parts are tested.
ELSEWHERE = ("trainer", "bisect", "slurm", "soak_slurm")


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("all")
        for name in ("all", "figures"):
            sys.modules.pop(name, None)


def test_the_table_has_every_benchmark(benchmarks: ModuleType) -> None:
    named = {entry.name: entry for entry in benchmarks.BENCHMARKS}
    parts = {f"bench_slurm_{part}.py" for part in ("failures", "packing", "submit")}  # of bench_slurm.py
    assert {entry.script for entry in named.values()} | parts == {path.name for path in FOLDER.glob("bench_*.py")}
    assert {*PLAIN, *TRAINING, *LONG, *ELSEWHERE} == set(named)


@pytest.mark.parametrize("name", [*LONG, *ELSEWHERE])
def test_a_benchmark_that_ci_does_not_run_starts(name: str, benchmarks: ModuleType) -> None:
    (entry,) = [entry for entry in benchmarks.BENCHMARKS if entry.name == name]
    done = subprocess.run([sys.executable, str(FOLDER / entry.script), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--smallest" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        *PLAIN,
        *(pytest.param(name, marks=pytest.mark.train) for name in TRAINING),
        *(pytest.param(name, marks=[pytest.mark.train, pytest.mark.long]) for name in LONG),
    ],
)
def test_a_benchmark_measures_at_its_smallest_size(name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, str(FOLDER / "all.py"), "--smallest", "--only", name, "--page", str(page)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text(encoding="utf-8")
    section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows
    assert all(re.match(r"[0-9.e+-]+( \w+)?$", row[1]) for row in rows)
    assert any(float(row[1].split()[0]) > 0 for row in rows)
    assert f"{name:<10} ok" in done.stdout


def test_a_benchmark_that_measures_nothing_fails(benchmarks: ModuleType) -> None:
    figures = sys.modules["figures"]
    options = figures.parser("").parse_args([])
    empty, zero = figures.Figure(name="none", values=[]), figures.Figure(name="zero", values=[0.0])
    for found in ([], [zero], [figures.Figure(name="one", values=[1.0]), empty]):
        with pytest.raises(SystemExit, match="nothing was measured"):
            figures.finished(found, options)


def test_limits_decide_the_exit_code_but_not_at_the_smallest_size(
    benchmarks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = sys.modules["figures"]
    slow = figures.Figure(name="slow", values=[9.0, 7.0, 8.0], limit=1.0)
    file = tmp_path / "figures.json"
    assert figures.finished([slow], figures.parser("").parse_args(["--figures", str(file)])) == 1
    assert capsys.readouterr().out == "slow: 8 s (median of 3, 7 to 9); limit 1: MISSED\n"
    assert figures.read(file) == [figures.Figure(name="slow", values=[9.0, 7.0, 8.0], limit=1.0)]
    assert figures.finished([slow], figures.parser("").parse_args(["--smallest"])) == 0


def test_the_page_shows_figures_and_what_was_not_measured(benchmarks: ModuleType) -> None:
    figures = sys.modules["figures"]
    cli, plan = benchmarks.BENCHMARKS[:2]
    slow = figures.Figure(name="help", values=[0.25, 0.5, 0.125], limit=0.2, note="as rival")
    text = benchmarks.page(
        [
            benchmarks.Ran(benchmark=cli, command="c", figures=[slow], load=3.14, seconds=9.6),
            benchmarks.Ran(benchmark=plan, command="p", why="left out"),
        ]
    )
    assert re.search(r"## cli\n\n`c`, 10 s; harness at \w+, [\d-]+; .* cores, .* torch \S+, megatron-core \S+:\n", text)
    assert "| help | 0.25 s | 0.125 to 0.5 | 3 | 0.2, missed | 3.1 | as rival |\n" in text
    assert "## plan\n\n`p`: not measured: left out.\n" in text
    later = benchmarks.page([benchmarks.Ran(benchmark=cli, command="c", why="left out")], text)
    assert later.partition("## cli")[2].strip() == text.partition("## cli")[2].partition("## plan")[0].strip()
