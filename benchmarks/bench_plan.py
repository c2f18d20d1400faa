"""Time and memory of `harness plan` for a matrix of 18,433 combinations.

    python benchmarks/bench_plan.py [--runs 5] [--covering 2]

Each run is a fresh process: import, read the file, expand, apply the rules, render the text. Prints the median times
and the largest peak of resident memory. Limits: 5 s of processor time and 200 MB. `--covering` makes a covering
selection of the cells, and prints how much of the processor time that took.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Figure, finished, parser

MATRIX = """
name: big
model: {layers: 32, hidden: 512, heads: 16, kv_heads: 8, ffn: 1024, vocab: 1024}
train: {global_batch: 64, seq_length: 4096}
matrix:
  tp: [1, 2, 4, 8]
  pp: [1, 2, 4, 8]
  cp: [1, 2, 4, 8]
  dp: [1, 2, 4, 8]
  vpp: [1, 2]
  micro_batch_size: [1, 2]
  packing: [unpacked, reference, sft]
  dtype: [fp32, bf16]
  train.seq_length: [1024, 2048, 4096]
  include:
    - {tp: 16, packing: sft}
constraints:
  - tp * pp * cp * dp <= 512
launch: {max_ranks: 256}
"""


def one_run(covering: int, *, smallest: bool = False) -> None:
    """In a fresh process: print seconds (wall, processor, selecting), peak resident MB, and a summary of the plan."""
    begin = time.perf_counter()
    from harness.cli.cli import main as command_line
    from harness.matrix.expansion import expand
    from harness.matrix.expansion.selection import choose

    chosen = [0.0]

    def timed(*arguments: Any) -> Any:
        begin = time.process_time()
        found = choose(*arguments)
        chosen.append(time.process_time() - begin)
        return found

    vars(expand)["choose"] = timed
    text = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
        file = Path(folder) / "big.yaml"
        matrix = MATRIX.replace(", 4, 8]", "]") if smallest else MATRIX
        file.write_text(matrix + (f"select: {{covering: {covering}}}\n" if covering else ""))
        command_line(["plan", str(file)])
    wall = time.perf_counter() - begin
    cpu = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = [line.strip() for line in text.getvalue().splitlines()]
    summary = "; ".join([lines[0], *(line for line in lines if line.startswith("covering"))])
    print(f"{wall} {cpu} {sum(chosen)} {peak} {summary}")


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--covering", type=int, default=0, metavar="T", help="a covering selection of this strength")
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.one:
        one_run(arguments.covering, smallest=arguments.smallest)
        return 0
    walls, cpus, selecting, peaks, plan = [], [], [], [], ""
    for _ in range(1 if arguments.smallest else arguments.runs):
        command = [sys.executable, __file__, "--one", "--covering", str(arguments.covering)]
        command += ["--smallest"] if arguments.smallest else []
        begin = time.perf_counter()
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        walls.append(time.perf_counter() - begin)  # including the start of the interpreter
        _, cpu, chosen, peak, plan = output.split(maxsplit=4)
        cpus.append(float(cpu))
        selecting.append(float(chosen))
        peaks.append(float(peak))
    print(plan.strip())
    figures = [
        Figure(name="wall time", values=walls),
        Figure(name="processor time", values=cpus, limit=5.0),
        Figure(name="peak resident memory", values=peaks, unit="MB", limit=200, worst=True),
    ]
    if arguments.covering:
        figures.append(Figure(name="of the processor time, to select", values=selecting))
    return finished(figures, arguments)


if __name__ == "__main__":
    sys.exit(main())
