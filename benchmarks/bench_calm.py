"""False alarms of the throughput lane: times the same code repeatedly and prints the counts.

    python benchmarks/bench_calm.py [--repeats 50] [--stack PACKAGE==VERSION] [--log calm.jsonl]

Each repeat runs one packed cell in two stacks that differ only in an environment variable, with every check of the
lane: segment_slope and packed_slower twice, slower_than once. Any FAIL is a false alarm and makes the exit code 1. The
stack itself must have no slope: megatron-core 0.18.2 by default. A minute or two per repeat on 2 cores; a later call
with the same log continues where an earlier one ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from figures import Figure, finished, parser
from repeat_log import continued

MATRIX = """\
name: calm
train: {{steps: 1, global_batch: 8, seq_length: 64}}
launch: {{deadline_s: 240}}
matrix: {{packing: reference, stack: [one, same]}}
stacks:
  one: {{packages: ["{package}"]}}
  same: {{packages: ["{package}"], env: {{HARNESS_BENCH: again}}}}
checks:
  canaries: none
  throughput: {{segment_slope: true, packed_slower: true, slower_than: one}}
"""


def one_run(folder: Path, matrix: Path) -> list[dict[str, Any]]:
    """The packed cells of one run."""
    command = [sys.executable, "-m", "harness", "run", str(matrix), "--run-dir", str(folder), "--no-history"]
    done = subprocess.run(command, capture_output=True, text=True)
    reports = list(folder.glob("*/report.json"))
    if not reports:
        sys.exit(done.stdout + done.stderr)
    cells = json.loads(reports[0].read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["axes"]["packing"] == "reference"]


def one_repeat(stack: str) -> dict[str, Any]:
    """The outcomes of the two cells, and every ratio."""
    with tempfile.TemporaryDirectory(prefix="calm-") as name:
        matrix = Path(name) / "calm.yaml"
        matrix.write_text(MATRIX.format(package=stack), encoding="utf-8")
        cells = one_run(Path(name) / "runs", matrix)
    ratios = [{"cell": cell["id"], **ratio} for cell in cells for ratio in cell["throughput"]["ratios"]]
    return {"outcomes": [cell["outcome"] for cell in cells], "ratios": ratios}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=50)
    options.add_argument("--stack", default="megatron-core==0.18.2", help="package and version (default: %(default)s)")
    options.add_argument("--log", type=Path, default=Path("calm.jsonl"))
    arguments = options.parse_args()
    one, repeats = partial(one_repeat, arguments.stack), 1 if arguments.smallest else arguments.repeats
    figures = summary(continued(arguments.log, f"calm, {arguments.stack}", repeats, one))
    return finished(figures, arguments)


def summary(rows: list[dict[str, Any]]) -> list[Figure]:
    """Print the verdicts of all repeats; returns the ratios and the number of false alarms."""
    outcomes = Counter(outcome for row in rows for outcome in row["outcomes"])
    verdicts: Counter[tuple[str, str]] = Counter()
    medians: dict[str, list[float]] = {}
    for number, row in enumerate(rows):
        for ratio in row["ratios"]:
            verdicts[ratio["what"], ratio["verdict"]] += 1
            medians.setdefault(ratio["what"], []).append(ratio["median"])
            if ratio["verdict"] == "slower":
                print(f"repeat {number} at load {row['load']}: {ratio}")
    for (what, verdict), count in sorted(verdicts.items()):
        print(f"{count:5}  {verdict:13}  {what}")
    print(f"{len(rows)} repeats of {rows[0]['matrix']}, cells: {dict(outcomes)}")
    figures = [Figure(name=what, values=found, unit="times") for what, found in medians.items()]
    return [*figures, Figure(name="false alarms", values=[outcomes["FAIL"]], unit="", limit=0)]


if __name__ == "__main__":
    sys.exit(main())
