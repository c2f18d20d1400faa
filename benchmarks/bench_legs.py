"""The cost of canary legs: runs of a matrix without them, with the default ones, and with all of them, interleaved.

    .venv/bin/python benchmarks/bench_legs.py [--matrix matrices/smoke.yaml] [--runs 3]

Prints medians over the runs: seconds from start to verdict, the sum of the cells' own seconds with its ratio to cells
without canaries, and the seconds that `harness report` takes to judge the finished run again, start of Python included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import ROOT, SMALLEST, Figure, finished, parser

VARIANTS = {"none": "none", "default": None, "all": "all"}  # value of checks.canaries; None: the key is left out


def write_matrix(source: Path, folder: Path, variant: str) -> Path:
    """Write the matrix with the canaries of a variant; its own `checks` section, the last, is left out."""
    text, value = source.read_text().partition("\nchecks:")[0], VARIANTS[variant]
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
        wall = timed(
            ["run", str(write_matrix(source, folder, variant)), "--run-dir", str(folder / "runs"), "--no-history"]
        )
        (made,) = (folder / "runs").iterdir()
        cells = json.loads((made / "report.json").read_text())["cells"]
        inside = sum(cell["timing"]["wall_s"] for cell in cells)
        return {"wall_s": wall, "cells_s": inside, "judge_s": timed(["report", str(made)])}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--matrix", type=Path, default=ROOT / "matrices" / "smoke.yaml")
    options.add_argument("--runs", type=int, default=3)
    arguments = options.parse_args()
    matrix, runs = (SMALLEST, 1) if arguments.smallest else (arguments.matrix, arguments.runs)
    seen: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(runs):
        for variant, found in seen.items():
            found.append(run(matrix, variant))
            print(variant, {name: round(value, 1) for name, value in found[-1].items()}, flush=True)
    figures = []
    for variant, found in seen.items():
        ratios = [one["cells_s"] / plain["cells_s"] for one, plain in zip(found, seen["none"])]
        figures += [
            Figure(name=f"canaries {variant}: wall time", values=[one["wall_s"] for one in found]),
            Figure(name=f"canaries {variant}: cells, over those without", values=ratios, unit="times"),
            Figure(name=f"canaries {variant}: judging again", values=[one["judge_s"] for one in found]),
        ]
    return finished(figures, arguments)


if __name__ == "__main__":
    sys.exit(main())
