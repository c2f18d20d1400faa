"""Every benchmark measures something at its smallest size; those on a cluster: tests/slurm/test_benchmarks.py."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.smallest import FOLDER, ON_A_CLUSTER, assert_measures

PLAIN = ("cli", "plan", "history", "judge")
TRAINING = ("start",)
LONG = ("scale", "smoke", "overhead", "repeats", "soak", "legs", "stacks", "calm", "trainer", "bisect")
AS_SMOKE = ("thousand",)  # differs from smoke only in its whole size


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
    assert {*PLAIN, *TRAINING, *LONG, *AS_SMOKE, *ON_A_CLUSTER} == set(named)
    assert {(named[name].script, named[name].always) for name in AS_SMOKE} == {("bench_smoke.py", ())}


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in PLAIN),
        *(pytest.param(name, marks=pytest.mark.train) for name in TRAINING),
        *(pytest.param(name, marks=[pytest.mark.train, pytest.mark.long]) for name in LONG),
    ],
)
def test_a_benchmark_measures_at_its_smallest_size(name: str) -> None:
    assert_measures(name)


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
