"""Start-up of the command line: `harness --help` in fresh processes.

.venv/bin/python benchmarks/bench_cli.py [--runs 15]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    for name, command in (
        ("harness --help", [sys.executable, "-m", "harness", "--help"]),
        ("bare python", [sys.executable, "-c", "pass"]),
    ):
        times = []
        for _ in range(runs):
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - begin)
        print(f"{name}: median {statistics.median(times):.3f} s (min {min(times):.3f}, max {max(times):.3f})")


if __name__ == "__main__":
    main()
