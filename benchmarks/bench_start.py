"""Time from `harness run` of the smoke matrix to its first cell, beside a bare import of torch and Megatron.

    python benchmarks/bench_start.py [--runs 3]

Each run is killed once its first cell has started. The bare import, in a fresh process, takes turns with the runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import ROOT, SMALLEST, Figure, finished, parser

IMPORT = "from harness.runtime.load import load; load()"
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
    """Start a run, and kill it when its first cell has started."""
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
    """When the plan was written and the first cell started; empty before that."""
    for journal in parent.glob("*/agents/local.0.jsonl"):
        lines = [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if started := [line["time"] for line in lines if line["event"] == "cell_started"]:
            return {"plan": (journal.parents[1] / "plan.json").stat().st_mtime, "first": started[0]}
    return {}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=3)
    arguments = options.parse_args()
    matrix, count = (SMALLEST, 1) if arguments.smallest else (SMOKE, arguments.runs)
    bare, runs = list[float](), list[Times]()
    # Agents of a killed launcher end a moment later, and may write meanwhile.
    with tempfile.TemporaryDirectory(prefix="bench-start-", ignore_cleanup_errors=True) as name:
        for number in range(count):
            bare.append(bare_import())
            runs.append(one_run(matrix, Path(name) / str(number)))
    ratios = [run["first"] / statistics.median(bare) for run in runs]
    figures = [
        Figure(name="bare import", values=bare),
        Figure(name="until the plan is written", values=[run["plan"] for run in runs]),
        Figure(name="until the first cell has started", values=[run["first"] for run in runs]),
        Figure(name="until the first cell over the bare import", values=ratios, unit="times", limit=LIMIT),
    ]
    return finished(figures, arguments)


if __name__ == "__main__":
    sys.exit(main())
