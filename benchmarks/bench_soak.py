"""Runs a matrix many times in a row and counts leaked processes, files and sockets.

    python benchmarks/bench_soak.py [--runs 30] [--matrix matrices/smoke.yaml]

Prints temporary files and folders, processes of the harness, listening ports and zombies before the first and after
the last run, and every cell that did not end as PASS (or as the matrix expects). Exit code 1 when a count has grown
or a cell did not pass. Run it on a machine where no other processes start or end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from figures import SMALLEST, Figure, finished, parser

_GOOD = ("PASS", "XFAIL", "REJECTED")
_LISTENING = "0A"  # state of a socket in /proc/net/tcp


def counts(work: Path) -> dict[str, int]:
    """Counts of everything that may leak, on this machine now. `work`: the soak's own folder, not counted."""
    states = Counter[str]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            states[stat.read_text().rpartition(") ")[2][0]] += 1
        except OSError:  # it has just exited
            continue
    return {
        "temporary files and folders": sum(path != work for path in Path(tempfile.gettempdir()).iterdir()),
        "processes of the harness": len(processes()),
        "listening ports": sum(map(_listening, ("tcp", "tcp6"))),
        "zombies": states["Z"],
    }


def processes() -> list[int]:
    """Pids of agents, supervisors and ranks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"harness.node.agent" in command and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def _listening(protocol: str) -> int:
    table = Path(f"/proc/net/{protocol}")
    lines = table.read_text().splitlines()[1:] if table.exists() else []
    return sum(line.split()[3] == _LISTENING for line in lines)


def run_once(matrix: str, runs: Path, number: int) -> list[str]:
    """A line for each cell of one run with an unexpected outcome, and for an exit code other than 0."""
    folder = runs / f"{number:03d}"
    command = [sys.executable, "-m", "harness", "run", matrix, "--run-dir", str(folder), "--no-history"]
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    reports = list(folder.glob("*/report.json"))
    if not reports:
        return [f"run {number}: exit code {done.returncode} and no report: {done.stdout.strip()[-300:]}"]
    report = json.loads(reports[0].read_text(encoding="utf-8"))
    bad = [f"run {number}: {cell['outcome']} {cell['id']}" for cell in report["cells"] if cell["outcome"] not in _GOOD]
    bad += [f"run {number}: exit code {done.returncode}"] if done.returncode else []
    print(f"run {number}: exit code {done.returncode} in {time.monotonic() - begin:.0f} s", flush=True)
    return bad


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=30, metavar="N", help="number of runs (30)")
    options.add_argument(
        "--matrix", default="matrices/smoke.yaml", metavar="MATRIX", help="matrix to run (matrices/smoke.yaml)"
    )
    arguments = options.parse_args()
    matrix, runs = (str(SMALLEST), 1) if arguments.smallest else (arguments.matrix, arguments.runs)
    bad: list[str] = []
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="harness-soak-") as folder:
        work = Path(folder)
        before = counts(work)
        for number in range(1, runs + 1):
            begin = time.monotonic()
            bad += run_once(matrix, work, number)
            seconds.append(time.monotonic() - begin)
        after = counts(work)
    for name, count in before.items():
        print(f"{name:<28} {count:>6} before, {after[name]:>6} after{'' if after[name] <= count else '  GROWN'}")
    print("\n".join(bad) or f"every cell of {runs} runs ended as expected")
    grown = [float(max(after[name] - count, 0)) for name, count in before.items()]
    figures = [Figure(name="a run", values=seconds), Figure(name="leaks of any kind", values=[sum(grown)], unit="")]
    finished([*figures, Figure(name="unexpected ends", values=[len(bad)], unit="", limit=0)], arguments)
    return int(bool(bad) or (any(grown) and not arguments.smallest))  # others may work beside the smallest size


if __name__ == "__main__":
    raise SystemExit(main())
