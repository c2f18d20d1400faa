"""A history of a million metric rows: seconds of every listing, of the page, and of recording one run.

The rows repeat those of the example report: the same cells night after night, under the names of several matrices,
with times that vary, versions that change every month, and some failures. Prints medians of several calls of the
command line, including the start of Python.

    python benchmarks/bench_history.py [--metrics N] [--times N] [--keep FILE]
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from figures import ROOT, Figure, finished, parser

from harness.history.database import opened
from harness.history.trends import CellRow, FindingRow, RunRow, run_row
from harness.reporting.render_json import read_report

MATRICES = 6
LIMIT_S = 3.0
FINDING = FindingRow(
    lane="numerics",
    check="grad_norm",
    severity="error",
    fault_class="D gradient reduction",
    message="gradient norm is 2.0000 times the reference: within 2 % of cp = 2",
    place='{"step": 0}',
    measured="2.0",
    bound="0.0001",
)
SMALLEST: tuple[list[str], ...] = (["metrics"], ["html", "-o", "page.html"])
COMMANDS: tuple[list[str], ...] = (
    ["runs"],
    ["runs", "--outcome", "FAIL"],
    ["cells"],
    ["cells", "--since", "90d"],
    ["outcomes"],
    ["outcomes", "--cell", "*sft*", "--since", "30d"],
    ["findings"],
    ["metrics"],
    ["metrics", "--cell", "tp2-pp2*", "--limit", "500"],
    ["html", "-o", "page.html"],
    ["html", "--days", "3650", "-o", "all.html"],
    ["prune", "--older-than", "180d", "--dry-run"],
)


def runs_of(example: RunRow, metrics: int) -> Iterator[RunRow]:
    """Runs of nights backwards from today, until their cells have `metrics` metrics."""
    chance, written, night = random.Random(7), 0, 0
    while written < metrics:
        night += 1
        day = datetime.now(timezone.utc) - timedelta(days=night)
        for number in range(MATRICES):
            cells = tuple(_cell(cell, night, chance) for cell in example.cells)
            started = (day - timedelta(hours=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
            run_id = f"matrix{number}-{started}"
            written += sum(len(cell.metrics) for cell in cells)
            yield replace(example, run_id=run_id, matrix=f"matrix{number}", started=started, cells=cells)


def _cell(cell: CellRow, night: int, chance: random.Random) -> CellRow:
    outcome = cell.outcome
    if outcome == "PASS":
        outcome = chance.choices(["PASS", "FAIL", "FLAKY", "ERROR"], [970, 10, 10, 10])[0]
    noise = {name: value * chance.uniform(0.97, 1.03) for name, value in cell.metrics.items()}
    findings = (FINDING,) * 3 if outcome == "FAIL" else ()
    version = f"megatron-core 0.{20 - night // 30}.0"
    return replace(cell, outcome=outcome, version=version, metrics=noise, findings=findings)


def timed(command: list[str], folder: Path) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--metrics", type=int, default=1_000_000)
    options.add_argument("--times", type=int, default=5)
    options.add_argument("--keep", type=Path, help="write the history to this file and keep it")
    arguments = options.parse_args()
    metrics, times, commands = arguments.metrics, arguments.times, COMMANDS
    if arguments.smallest:
        metrics, times, commands = 2_000, 1, SMALLEST
    example = run_row(read_report((ROOT / "reports" / "example" / "report.json").read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = (arguments.keep or folder / "history.sqlite").resolve()
        begin = time.perf_counter()
        with opened(file, write=True) as history:
            for run in runs_of(example, metrics):
                history.record(run, folder / run.run_id)
            tables = ("runs", "cells", "findings", "metrics")
            counts = [next(history.rows((f"SELECT count(*) AS n FROM {table}", {})))["n"] for table in tables]
        size = file.stat().st_size / 2**20
        print(f"{', '.join(f'{count:,} {table}' for count, table in zip(counts, tables))}; {size:.0f} MiB")
        spent = time.perf_counter() - begin
        figures = [Figure(name="recording a run", values=[spent / counts[0]])]
        for command in commands:
            line = [sys.executable, "-m", "harness", "history", *command, "--history", str(file)]
            name = f"`harness history {' '.join(command)}`"
            figures.append(Figure(name=name, values=[timed(line, folder) for _ in range(times)], limit=LIMIT_S))
    return finished(figures, arguments)


if __name__ == "__main__":
    sys.exit(main())
