"""Time of the smoke matrix to its verdict, compared with a separate torchrun for each of its cells.

    .venv/bin/python benchmarks/bench_smoke.py [--runs 3] [--rival-cells 6 | all]

Prints medians: wall time, the time of an 8-rank cell outside its training steps, the launcher's peak memory, and the
ratio to torchrun. Unless `all` are launched, torchrun's total is that of a sample of cells spread over the world
sizes, scaled up by the number of cells of each size.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "matrices" / "smoke.yaml"


def run_matrix(parent: Path) -> dict[str, Any]:
    """Run the matrix once in a fresh process; returns the figures of the run."""
    before = set(parent.glob("*"))
    begin = time.perf_counter()
    command = [sys.executable, "-m", "harness", "run", str(MATRIX), "--run-dir", str(parent)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, peak_memory_kib(process.pid))
        time.sleep(0.1)
    wall = time.perf_counter() - begin
    (run,) = set(parent.glob("*")) - before
    report = json.loads((run / "report.json").read_text())
    eight = [cell for cell in report["cells"] if len(cell["ranks"]) == 8]
    return {
        "run": run,
        "exit_code": process.returncode,
        "counts": {name: count for name, count in report["counts"].items() if count},
        "wall_s": wall,
        "import_s": report["timing"]["import_s"],
        "launcher_peak_mib": peak / 1024,
        "eight_rank_overhead_s": statistics.median(cell["timing"]["overhead_s"] for cell in eight),
        "eight_rank_cells": len(eight),
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rival-cells", default="6", help="how many cells to launch with torchrun, or 'all'; 0: none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for _ in range(arguments.runs):
            runs.append(run_matrix(Path(folder)))
            print({name: value for name, value in runs[-1].items() if name != "run"}, flush=True)
        for name in ("wall_s", "import_s", "eight_rank_overhead_s", "launcher_peak_mib"):
            values = [run[name] for run in runs]
            print(f"{name}: median {statistics.median(values):.2f} (min {min(values):.2f}, max {max(values):.2f})")
        if arguments.rival_cells == "0":
            return
        rival, launched, cells = launch_with_torchrun(runs[-1]["run"], arguments.rival_cells)
        ours = statistics.median(run["wall_s"] for run in runs)
        how = "measured" if launched == cells else f"scaled up from {launched} of {cells} cells"
        print(f"torchrun for each cell: {rival:.0f} s ({how}); ratio ours / torchrun = {ours / rival:.3f}")


if __name__ == "__main__":
    main()
