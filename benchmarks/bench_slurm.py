"""Figures of runs on a cluster, measured on the tests' four-node Slurm: submission, packing of cells, failures.

    python benchmarks/bench_slurm.py [--runs 3] [--only submit | packing | failures]

Needs root and Debian's packages (scripts/setup --slurm), and an otherwise idle machine. All parts take about half an
hour on 2 cores. Every figure is printed with its limit; the exit code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import time

import bench_slurm_failures
import bench_slurm_packing
import bench_slurm_submit
from slurm_figures import exit_code, started_lab

from tests.slurm.machine import missing

PARTS = {
    "submit": bench_slurm_submit.measure,
    "packing": bench_slurm_packing.measure,
    "failures": bench_slurm_failures.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=PARTS, action="append", help="run only this part (repeatable)")
    arguments = parser.parse_args()
    if reason := missing():
        parser.error(reason)
    figures = []
    with started_lab() as lab:
        for part in arguments.only or PARTS:
            begin, load = time.monotonic(), os.getloadavg()[0]
            found = PARTS[part](lab, arguments.runs)
            print(f"{part} (load at its start {load:.1f}, {time.monotonic() - begin:.0f} s)", flush=True)
            print("".join(f"  {figure.line()}\n" for figure in found), flush=True)
            figures += found
    return exit_code(figures)


if __name__ == "__main__":
    raise SystemExit(main())
