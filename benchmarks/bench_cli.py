"""Start-up of the command line: `harness --help` in fresh processes.

.venv/bin/python benchmarks/bench_cli.py [--runs 15]
"""

from __future__ import annotations

import subprocess
import sys
import time

from figures import Figure, finished, parser


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=15)
    arguments = options.parse_args()
    figures = []
    for name, command in (
        ("harness --help", [sys.executable, "-m", "harness", "--help"]),
        ("bare python", [sys.executable, "-c", "pass"]),
    ):
        times = []
        for _ in range(1 if arguments.smallest else arguments.runs):
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - begin)
        figures.append(Figure(name=name, values=times))
    return finished(figures, arguments)


if __name__ == "__main__":
    sys.exit(main())
