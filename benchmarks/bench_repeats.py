"""False alarms of a matrix: runs the same code repeatedly, counts outcomes and lists unexpected cells.

    python benchmarks/bench_repeats.py [--matrix matrices/smoke.yaml] [--repeats 100] [--log repeats.jsonl]

A line per repeat goes to the log: outcomes, unexpected cells (not PASS, XFAIL or REJECTED) with their first findings,
version of the code, load of the machine. A later call with the same log continues where an earlier one ended; lines of
other versions of harness/ or of another matrix do not count. Exit code 1 when a cell of any repeat was FAIL. A repeat
of the smoke matrix takes a minute on 2 idle cores. Other work beside it is welcome: it exposes verdicts that depend on
time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from figures import SMALLEST, Figure, finished, parser
from repeat_log import ROOT, continued

QUIET = ("PASS", "REJECTED", "XFAIL")  # outcomes of a matrix without bugs


def one_repeat(matrix: Path) -> dict[str, Any]:
    """Run the matrix once and return its outcomes."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="repeats-") as folder:
        command = [sys.executable, "-m", "harness", "run", str(matrix), "--run-dir", folder, "--no-history"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        reports = list(Path(folder).glob("*/report.json"))
        if not reports:
            return {"code": done.returncode, "counts": {"no report": 1}, "odd": [(done.stdout + done.stderr)[-2000:]]}
        report = json.loads(reports[0].read_text(encoding="utf-8"))
    return {
        "code": done.returncode,
        "counts": {name: number for name, number in report["counts"].items() if number},
        "odd": [facts(cell) for cell in report["cells"] if cell["outcome"] not in QUIET],
        "wall_s": round(time.perf_counter() - begin, 1),
    }


def facts(cell: dict[str, Any]) -> dict[str, Any]:
    """The log's entry for a cell with an unexpected outcome."""
    failure = cell["failure"] or {}
    findings = [f"{one['check']}: {one['message']}" for one in cell["findings"][:2]]
    return {"id": cell["id"], "outcome": cell["outcome"], "findings": findings, "failure": failure.get("message", "")}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--matrix", type=Path, default=ROOT / "matrices" / "smoke.yaml")
    options.add_argument("--repeats", type=int, default=100)
    options.add_argument("--log", type=Path, default=Path("repeats.jsonl"))
    arguments = options.parse_args()
    matrix, repeats = (SMALLEST, 1) if arguments.smallest else (arguments.matrix, arguments.repeats)
    rows = continued(arguments.log, matrix.name, repeats, partial(one_repeat, matrix))
    counts = summary(rows)
    figures = [
        Figure(name="a repeat", values=[row["wall_s"] for row in rows if "wall_s" in row]),
        Figure(name="false alarms", values=[counts["FAIL"]], unit="", limit=0, note=f"{counts['PASS']} cells PASS"),
    ]
    return finished(figures, arguments)


def summary(rows: list[dict[str, Any]]) -> Counter[str]:
    """Print the outcomes of all repeats, and count them."""
    counts: Counter[str] = Counter()
    for number, row in enumerate(rows):
        counts.update(row["counts"])
        for odd in row["odd"]:
            print(f"repeat {number} at load {row['load']}: {odd}")
    loads = [row["load"] for row in rows]
    print(f"{len(rows)} repeats of {rows[0]['matrix']}: {dict(counts)}")
    print(f"load of the machine at the start of repeats: median {statistics.median(loads)}, up to {max(loads)}")
    return counts


if __name__ == "__main__":
    sys.exit(main())
