"""The wall time of an 8-rank cell by upstream's own trainer, over that of the same cell by the harness's loop.

    .venv/bin/python benchmarks/bench_trainer.py [--clone CLONE] [--ref main] [--runs 5]

CLONE is a clone of Megatron-LM, whose training script trains; without one it is Megatron-Bridge's loop, of the recipe
bridge-0.6.2. Every run has both cells, one after the other, on the same stack; canaries are off, so both only train.
Prints medians, the median of the ratios, and the peak memory per rank. Exit code 1 when the ratio is above 3.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import ROOT, Figure, finished, parser

LIMIT = 3.0
MATRIX = """\
name: trainer_cost
checks: {{canaries: none}}
launch: {{parallel_ranks: 8, deadline_s: 300}}
documents: {{mode: uncut}}
stacks:
  upstream: {stack}
matrix:
  stack: [upstream]
  packing: [{packing}]
  trainer: [harness, {trainer}]
  layout: [{{tp: 2, pp: 2, cp: 2}}]
"""
CLONE = """
    - {{checkout: {clone}, ref: {ref}, package: megatron-lm}}
    - {{packages: [datasets==5.2.0, transformers==5.12.1, psutil==7.2.2]}}"""


def matrix(trainer: str, clone: Path | None, ref: str) -> str:
    if clone is None:
        return MATRIX.format(stack="bridge-0.6.2", packing="bridge_offline", trainer=trainer)
    return MATRIX.format(stack=CLONE.format(clone=clone.resolve(), ref=ref), packing="sft", trainer=trainer)


def run(folder: Path) -> dict[str, dict[str, Any]]:
    """Wall seconds and peak bytes of one run, by trainer."""
    command = [sys.executable, "-m", "harness", "run", str(folder / "matrix.yaml"), "--run-dir", str(folder / "runs")]
    done = subprocess.run([*command, "--no-history"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    made = max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    cells = json.loads((made / "report.json").read_text())["cells"]
    return {
        cell["axes"]["trainer"]: {"wall_s": cell["timing"]["wall_s"], "peak": peak(made / "cells" / cell["id"])}
        for cell in cells
        if cell["role"] == "cell"
    }


def peak(cell: Path) -> int:
    """The largest peak of a rank, bytes."""
    records = [json.loads(path.read_text()) for path in cell.glob("attempt-*/ranks/*.json")]
    return max(int(record["peak_memory_bytes"]) for record in records)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--clone", type=Path)
    options.add_argument("--ref", default="main")
    options.add_argument("--runs", type=int, default=5)
    arguments = options.parse_args()
    upstream = "megatron" if arguments.clone else "bridge"
    with tempfile.TemporaryDirectory(prefix="trainer-") as name:
        folder = Path(name)
        (folder / "matrix.yaml").write_text(matrix(upstream, arguments.clone, arguments.ref))
        runs = [run(folder) for _ in range(1 if arguments.smallest else arguments.runs)]
    figures = []
    for trainer in ("harness", upstream):
        walls, peaks = ([one[trainer][key] for one in runs] for key in ("wall_s", "peak"))
        figures.append(Figure(name=f"8-rank cell by {trainer}", values=walls))
        figures.append(
            Figure(name=f"peak memory per rank by {trainer}", values=[one / 2**20 for one in peaks], unit="MiB")
        )
    ratios = [one[upstream]["wall_s"] / one["harness"]["wall_s"] for one in runs]
    return finished(
        [*figures, Figure(name=f"{upstream} over harness", values=ratios, unit="times", limit=LIMIT)], arguments
    )


if __name__ == "__main__":
    sys.exit(main())
