"""The cost of canary legs: runs of a matrix without them, with the default ones, and with all of them, interleaved.

    .venv/bin/python benchmarks/bench_legs.py [--matrix matrices/smoke.yaml] [--runs 3]

Prints medians over the runs: seconds from start to verdict, the sum of the cells' own seconds with its ratio to cells
without canaries, and the seconds that `harness report` takes to judge the finished run again, start of Python included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = {"none": "none", "default": None, "all": "all"}  # value of checks.canaries; None: the key is left out


def write_matrix(source: Path, folder: Path, variant: str) -> Path:
    """Write the matrix with the canaries of a variant; the source must have no `checks` section."""
    text, value = source.read_text(), VARIANTS[variant]
    path = folder / f"{variant}.yaml"
    path.write_text(text if value is None else f"{text}\nchecks: {{canaries: {value}}}\n")
    return path


def timed(command: list[str]) -> float:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "harness", *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - begin


def run(source: Path, variant: str) -> dict[str, float]:
    """Seconds of one run of a variant."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wall = timed(["run", str(write_matrix(source, folder, variant)), "--run-dir", str(folder / "runs")])
        (made,) = (folder / "runs").iterdir()
        cells = json.loads((made / "report.json").read_text())["cells"]
        inside = sum(cell["timing"]["wall_s"] for cell in cells)
        return {"wall_s": wall, "cells_s": inside, "judge_s": timed(["report", str(made)])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrices" / "smoke.yaml")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    seen: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(arguments.runs):
        for variant, found in seen.items():
            found.append(run(arguments.matrix, variant))
            print(variant, {name: round(value, 1) for name, value in found[-1].items()}, flush=True)
    medians = {
        variant: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for variant, found in seen.items()
    }
    for variant, values in medians.items():
        ratio = values["cells_s"] / medians["none"]["cells_s"]
        print(
            f"{variant}: median wall {values['wall_s']:.1f} s, cells {values['cells_s']:.1f} s "
            f"({ratio:.2f} times those without canaries), judging {values['judge_s']:.1f} s"
        )


if __name__ == "__main__":
    main()
