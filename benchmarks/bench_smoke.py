"""Time of the smoke matrix to its verdict, compared with a separate torchrun for each of its cells.

    .venv/bin/python benchmarks/bench_smoke.py [--runs 3] [--rival-cells 6 | all] [--matrix FILE]

Prints medians: wall time, the part of it after the last cell had ended, the time of the largest cells outside their
training steps, the processor time of each part of such a cell, the launcher's peak memory, and the ratio to torchrun.
Unless `all` are launched, torchrun's total is that of a sample of cells spread over the world sizes, scaled up by the
number of cells of each size. Another matrix has no limits.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from figures import ROOT, SMALLEST, Figure, finished, parser

MATRIX = ROOT / "matrices" / "smoke.yaml"


def run_matrix(matrix: Path, parent: Path) -> dict[str, Any]:
    """Run the matrix once in a fresh process; returns the figures of the run."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "harness", "run", str(matrix), "--run-dir", str(parent), "--no-history"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, peak_memory_kib(process.pid))
        time.sleep(0.1)
    wall, ended = time.perf_counter() - begin, time.time()
    (run,) = parent.iterdir()
    report = json.loads((run / "report.json").read_text())
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {report['counts']}")
    most = max(len(cell["ranks"]) for cell in report["cells"])
    largest = [cell["timing"] for cell in report["cells"] if len(cell["ranks"]) == most]
    return {
        "run": run,
        "wall_s": wall,
        "cells": len(report["cells"]),
        "after_s": ended - last_cell_ended(run),
        "import_s": report["timing"]["import_s"],
        "launcher_peak_mib": peak / 1024,
        "ranks": most,
        "overhead_s": statistics.median(timing["overhead_s"] for timing in largest),
        "steps_ratio": statistics.median(timing["wall_s"] / timing["steps_s"] for timing in largest),
        "laps": laps_of(run, most),
    }


def last_cell_ended(run: Path) -> float:
    """Seconds since the epoch at which the last cell had ended."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return max(float(event["time"]) for event in events if event["event"] == "cell_finished")


def laps_of(run: Path, ranks: int) -> dict[str, float]:
    """Processor seconds of each part of a cell with so many ranks: the mean over cells of the sum over ranks."""
    found: dict[str, float] = defaultdict(float)
    cells = [cell for cell in run.glob("cells/*/attempt-1") if len(list(cell.glob("ranks/*.json"))) == ranks]
    for path in (path for cell in cells for path in cell.glob("ranks/*.json")):
        record = json.loads(path.read_text())
        for name, lap in json.loads(path.with_suffix(".progress").read_text().splitlines()[1]).items():
            found[name] += lap["busy_s"] / len(cells)
        steps = sum(step["busy_s"] for step in record["steps"]) / len(cells)
        found["training steps"] += steps
        found["training"] -= steps
    return found


def peak_memory_kib(pid: int) -> int:
    """VmHWM of one process, without its children."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def launch_with_torchrun(run: Path, how_many: str) -> tuple[float, int, int]:
    """Seconds for all cells of a run with one torchrun each, number of cells launched, number of all cells."""
    by_size: dict[int, list[Path]] = defaultdict(list)
    for path in sorted(run.glob("cells/*/attempt-1/config.json")):
        layout = json.loads(path.read_text())["layout"]
        by_size[layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"]].append(path)
    total_cells = sum(map(len, by_size.values()))
    each = total_cells if how_many == "all" else max(int(how_many) // len(by_size), 1)
    total, launched = 0.0, 0
    for size, paths in sorted(by_size.items()):
        chosen = paths[:: max(len(paths) // each, 1)][:each]
        times = [torchrun(path, size) for path in chosen]
        print(f"  torchrun, {size} ranks: {', '.join(f'{value:.1f}' for value in times)} s", flush=True)
        total += statistics.mean(times) * len(paths)
        launched += len(times)
    return total, launched, total_cells


def torchrun(config: Path, ranks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(ROOT / "benchmarks" / "torchrun_rank.py"), str(config), folder]
        begin = time.perf_counter()
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return time.perf_counter() - begin


def figures_of(runs: list[dict[str, Any]], limited: bool) -> list[Figure]:
    ranks = runs[-1]["ranks"]
    rows = {
        "cells": ("cells", "", None),
        "wall_s": ("wall time to the verdict", "s", 90.0),
        "after_s": ("of which after the last cell had ended", "s", None),
        "import_s": ("of which import", "s", None),
        "overhead_s": (f"outside the training steps of a cell of {ranks} ranks", "s", 1.5),
        "steps_ratio": (f"a cell of {ranks} ranks over its training steps", "times", 1.3),
        "launcher_peak_mib": ("peak memory of the launcher", "MiB", None),
    }
    figures = [
        Figure(name=name, values=[run[key] for run in runs], unit=unit, limit=limit if limited else None)
        for key, (name, unit, limit) in rows.items()
    ]
    medians = {lap: statistics.median(run["laps"].get(lap, 0.0) for run in runs) for lap in runs[-1]["laps"]}
    for lap in sorted(medians, key=lambda name: -medians[name]):
        name = "outside the steps, training" if lap == "training" else lap
        values = [run["laps"].get(lap, 0.0) for run in runs]
        figures.append(Figure(name=f"processor time of a cell of {ranks} ranks: {name}", values=values))
    return figures


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--rival-cells", default="6", help="how many cells to launch with torchrun, or 'all'; 0: none")
    options.add_argument("--matrix", type=Path, default=MATRIX)
    arguments = options.parse_args()
    matrix, count, cells = arguments.matrix.resolve(), arguments.runs, arguments.rival_cells
    if arguments.smallest:
        matrix, count, cells = SMALLEST, 1, "1"
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_matrix(matrix, Path(folder) / str(number)) for number in range(count)]
        figures = figures_of(runs, limited=matrix == MATRIX)
        if cells != "0":
            rival, launched, total = launch_with_torchrun(runs[-1]["run"], cells)
            how = "measured" if launched == total else f"scaled up from {launched} of {total} cells"
            figures.append(Figure(name="one torchrun per cell, without a verdict", values=[rival], note=how))
            ratios = [run["wall_s"] / rival for run in runs]
            figures.append(Figure(name="wall time over that of torchrun", values=ratios, unit="times", limit=0.05))
    return finished(figures, arguments)


if __name__ == "__main__":
    sys.exit(main())
