"""Time from `harness run` to its first cell, beside a bare import of torch and Megatron.

    python benchmarks/bench_start.py [--runs 3] [--cells 20000]

Of the smoke matrix, and of one with 20,000 cells on this machine. Each run is killed once its first cell has started
and its last configuration is written. The bare import, in a fresh process, takes turns with the runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from figures import ROOT, SMALLEST, Figure, finished, parser
from scale_stages import MATRIX as LARGE
from scale_stages import OF_A_GROUP

IMPORT = "from harness.node.load import load; load()"
SMOKE = ROOT / "matrices" / "smoke.yaml"
LIMIT = 1.1  # from the command to the first cell, over the bare import
POLL_S = 0.01
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # as agents set it

Times = dict[str, float]  # what happened -> seconds after the command


def bare_import() -> float:
    """Seconds that a process takes which only imports what an agent does."""
    begin = time.time()
    subprocess.run([sys.executable, "-c", IMPORT], check=True, cwd=ROOT, capture_output=True, env=ENVIRONMENT)
    return time.time() - begin


def one_run(matrix: Path, parent: Path) -> Times:
    """Start a run, and kill it when all of its cells are named and the first one has started."""
    command = [sys.executable, "-m", "harness", "run", str(matrix), "--run-dir", str(parent), "--no-history"]
    begin = time.time()
    launcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        while not (found := times_of(parent)):
            if launcher.poll() is not None:
                raise SystemExit(f"the run ended with exit code {launcher.returncode}")
            time.sleep(POLL_S)
    finally:
        launcher.kill()
        launcher.wait()
    return {name: when - begin for name, when in found.items()}


def times_of(parent: Path) -> Times:
    """When the first cell started, the plan was written and the last configuration; empty before the last of them."""
    for journal in parent.glob("*/agents/local.0.jsonl"):
        run = journal.parents[1]
        order = run / "submissions" / "local.json"
        lines = [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
        started = [line["time"] for line in lines if line["event"] == "cell_started"]
        if started and (run / "plan.json").exists() and not json.loads(order.read_text()).get("more"):
            files = {"plan.json": run / "plan.json", "last": order}
            return {"first": started[0], **{name: file.stat().st_mtime for name, file in files.items()}}
    return {}


def large(folder: Path, cells: int) -> Path:
    """A matrix of about so many cells."""
    rates = ", ".join(f"{0.001 + 1e-7 * number:.7f}" for number in range(max(1, cells // OF_A_GROUP)))
    file = folder / "large.yaml"
    file.write_text(LARGE.format(rates=rates, largest=""))
    return file


def figures_of(name: str, runs: Sequence[Times], bare: Sequence[float]) -> list[Figure]:
    alone = statistics.median(bare)
    what = {
        "first": "the first cell has started",
        "plan.json": "the plan is written",
        "last": "the last cell has its configuration",
    }
    figures = [Figure(name=f"{name}, until {words}", values=[run[key] for run in runs]) for key, words in what.items()]
    ratios = [run["first"] / alone for run in runs]
    over = Figure(name=f"{name}, until the first cell over the bare import", values=ratios, unit="times", limit=LIMIT)
    return [*figures, over]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--cells", type=int, default=20_000, help="of the large matrix")
    arguments = options.parse_args()
    bare: list[float] = []
    # Agents of a killed launcher end a moment later, and may write meanwhile.
    with tempfile.TemporaryDirectory(prefix="bench-start-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        matrices = {"smoke": SMOKE, f"{arguments.cells:,} cells": large(folder, arguments.cells)}
        if arguments.smallest:
            matrices, arguments.runs = {"smallest": SMALLEST}, 1
        found: dict[str, list[Times]] = {label: [] for label in matrices}
        for number in range(arguments.runs):
            for label, matrix in matrices.items():
                bare.append(bare_import())
                found[label].append(one_run(matrix, folder / f"{number}-{label.replace(' ', '-')}"))
    figures = [Figure(name="bare import", values=bare)]
    for label, runs in found.items():
        figures += figures_of(label, runs, bare)
    return finished(figures, arguments)


if __name__ == "__main__":
    sys.exit(main())
