"""The cost of a stack: one cell in a built stack against the same cell in the default one; and the releases matrix.

    .venv/bin/python benchmarks/bench_stacks.py [--runs 5] [--releases 1]

The two runs of a pair use the same release of megatron-core and follow each other directly. Wall time is that of the
whole command, import time is what the agent reports. Processor time is that of all processes together: unlike wall
time, it depends little on other work on the machine. A first run of each builds the stacks and is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from figures import ROOT, Figure, finished, parser

RELEASES = ROOT / "matrices" / "releases.yaml"
STACK_LIMIT_S, RELEASES_LIMIT_S = 3.0, 240.0
MATRIX = """\
name: {name}
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 4, seq_length: 32}}
matrix: {{packing: unpacked, stack: {name}}}
"""


@dataclass(frozen=True)
class Run:
    """Seconds of one `harness run`."""

    wall: float
    processor: float  # user and system, of all its processes
    imports: float  # wall, of the first agent
    outcomes: str

    @property
    def own(self) -> float:
        """Wall time without the import."""
        return self.wall - self.imports


def run(matrix: Path) -> Run:
    with tempfile.TemporaryDirectory() as parent:
        command = [sys.executable, "-m", "harness", "run", str(matrix), "--run-dir", parent, "--no-history"]
        log = Path(parent) / "log"
        with log.open("wb") as stream:
            begin = time.perf_counter()
            process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream)
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{matrix.name}: exit code {process.returncode}\n{log.read_text()}")
        (report,) = Path(parent).glob("*/report.json")
        found = json.loads(report.read_text())
        counts = ", ".join(f"{count} {name}" for name, count in found["counts"].items() if count)
        return Run(wall, usage.ru_utime + usage.ru_stime, found["timing"]["import_s"], counts)


def matrices(folder: Path) -> tuple[Path, Path]:
    """The same cell in the default stack, and in an environment of packages with the same megatron-core."""
    release = version("megatron-core")
    default, packages = folder / "default.yaml", folder / "packages.yaml"
    default.write_text(MATRIX.format(name="default"))
    packages.write_text(
        MATRIX.format(name="packages") + f"stacks: {{packages: {{packages: [megatron-core=={release}]}}}}\n"
    )
    return default, packages


def measure_stack(runs: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        default, packages = matrices(Path(folder))
        run(default)
        run(packages)
        pairs = [(run(default), run(packages)) for _ in range(runs)]
    figures = []
    for name, number in (("default stack", 0), ("built stack", 1)):
        made = [pair[number] for pair in pairs]
        figures += [
            Figure(name=f"one cell in the {name}, wall time", values=[one.wall for one in made]),
            Figure(name=f"one cell in the {name}, import", values=[one.imports for one in made]),
            Figure(name=f"one cell in the {name}, processor time", values=[one.processor for one in made]),
        ]
    more = [stack.own - default.own for default, stack in pairs]
    processor = [stack.processor - default.processor for default, stack in pairs]
    return [
        *figures,
        Figure(name="extra wall time of a built stack, without import", values=more, limit=STACK_LIMIT_S),
        Figure(name="extra processor time of a built stack", values=processor),
    ]


def measure_releases(runs: int) -> list[Figure]:
    run(RELEASES)
    made = [run(RELEASES) for _ in range(runs)]
    return [
        Figure(
            name="releases matrix, wall time",
            values=[one.wall for one in made],
            limit=RELEASES_LIMIT_S,
            note=made[-1].outcomes,
        ),
        Figure(name="releases matrix, processor time", values=[one.processor for one in made]),
    ]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=5, help="pairs of runs of one cell; 0: none")
    options.add_argument("--releases", type=int, default=1, help="runs of the releases matrix; 0: none")
    arguments = options.parse_args()
    runs, releases = (1, 0) if arguments.smallest else (arguments.runs, arguments.releases)
    figures = measure_stack(runs) if runs else []
    return finished([*figures, *(measure_releases(releases) if releases else [])], arguments)


if __name__ == "__main__":
    sys.exit(main())
