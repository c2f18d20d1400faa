"""Figures of runs on a cluster, measured on the tests' four-node Slurm: submission, packing of cells, failures.

    python benchmarks/bench_slurm.py [--runs 3] [--only submit | packing | failures]

Needs root and Debian's packages (scripts/setup --slurm), and an otherwise idle machine. All parts take about half an
hour on 2 cores. Every figure is printed with its limit; the exit code is 1 when one is missed.
"""

from __future__ import annotations

import os
import time

import bench_slurm_failures
import bench_slurm_packing
import bench_slurm_submit
from figures import Figure, finished, parser
from slurm_figures import started_lab

from tests.slurm.machine import missing

PARTS = {
    "submit": bench_slurm_submit.measure,
    "packing": bench_slurm_packing.measure,
    "failures": bench_slurm_failures.measure,
}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--only", choices=PARTS, action="append", help="run only this part (repeatable)")
    arguments = options.parse_args()
    if reason := missing():
        options.error(reason)
    parts, runs = (["failures"], 1) if arguments.smallest else (arguments.only or list(PARTS), arguments.runs)
    figures: list[Figure] = []
    with started_lab() as lab:
        for part in parts:
            begin, load = time.monotonic(), os.getloadavg()[0]
            found = PARTS[part](lab, runs)
            print(f"{part} (load at its start {load:.1f}, {time.monotonic() - begin:.0f} s)", flush=True)
            figures += found
    return finished(figures, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
