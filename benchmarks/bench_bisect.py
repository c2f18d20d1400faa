"""The cost of a bisection of Megatron-LM: number of judged commits, and seconds per judged commit.

    .venv/bin/python benchmarks/bench_bisect.py --repo ../Megatron-LM [--commits 500] [--runs 1]

A matrix of two cells over `--commits` commits around the one that gave all pipeline stages their packed metadata, which
has to be found. Every run judges from scratch; a first run that is not counted builds the environments. The time of a
round includes making the worktrees, which is also printed separately. Run it on an idle machine of two cores.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from figures import ROOT, Figure, finished, parser

from harness.core.serialization import from_jsonable, loads
from harness.judge.bisect.result import Bisection

FIX = "5e4fc931ba"  # refactor(data): consolidate get_batch and enable PP for SFT THD
PER_COMMIT_S = 15.0
MATRIX = """\
name: bench_bisect
train: {steps: 2}
documents: {mode: file, lengths: [16, 8, 24, 4, 12, 32, 20, 28]}
matrix:
  packing: sft
  layout: [{tp: 2, pp: 4}, {tp: 1, pp: 1}]
"""


@dataclass(frozen=True)
class Run:
    found: Bisection
    wall: float

    @property
    def judged(self) -> list[float]:
        """Seconds of each judged commit."""
        return [point.seconds for point in self.found.points if not point.kept]


def git(repo: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(repo), *arguments], check=True, capture_output=True, text=True).stdout


def ends_of(repo: Path, commits: int) -> tuple[str, str]:
    """(old, new) of `commits` commits along the first parents around the fix, a third of them after it."""
    after = git(repo, "rev-list", "--first-parent", "--reverse", f"{FIX}..origin/main").split()
    new = after[commits // 3 - 1]
    line = git(repo, "rev-list", "--first-parent", f"--max-count={commits + 1}", new).split()
    return line[-1], new


def bisect(repo: Path, old: str, new: str) -> Run:
    with tempfile.TemporaryDirectory(prefix="bench-bisect-") as folder:
        (matrix := Path(folder) / "bench.yaml").write_text(MATRIX)
        command = [sys.executable, "-m", "harness", "bisect", str(matrix), "--repo", str(repo)]
        command += ["--bad", old, "--good", new, "--find", "fixed", "--first-parent", "--fresh", "--no-shrink"]
        begin = time.perf_counter()
        subprocess.run([*command, "--run-dir", folder], cwd=ROOT, check=True)
        wall = time.perf_counter() - begin
        (result,) = Path(folder).glob("bisect-*/result.json")
        return Run(from_jsonable(Bisection, loads(result.read_text())), wall)


def checkout_seconds(repo: Path, commit: str) -> float:
    """Seconds to make one worktree, which is then removed."""
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder) / "tree"
        begin = time.perf_counter()
        git(repo, "worktree", "add", "--quiet", "--detach", str(worktree), commit)
        seconds = time.perf_counter() - begin
        git(repo, "worktree", "remove", "--force", str(worktree))
    return seconds


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--repo", type=Path, required=True)
    options.add_argument("--commits", type=int, default=500)
    options.add_argument("--runs", type=int, default=1)
    arguments = options.parse_args()
    repo = arguments.repo.resolve()
    commits, runs = (4, 1) if arguments.smallest else (arguments.commits, arguments.runs)
    old, new = ends_of(repo, commits)
    most = math.ceil(math.log2(commits)) + 2
    bisect(repo, f"{FIX}~1", FIX)  # makes the environment
    walls, judged, seconds = [], [], []
    for _ in range(runs):
        run = bisect(repo, old, new)
        name = run.found.found.name if run.found.found else "nothing"
        if not name.startswith(FIX):
            raise SystemExit(f"found {name[:12]}, not {FIX}")
        walls.append(run.wall)
        judged.append(len(run.judged) - len(run.found.skipped))
        seconds += run.judged
    figures = [
        Figure(name=f"searching {commits} commits", values=walls),
        Figure(name="judged commits that could be judged", values=judged, unit="", limit=most, worst=True),
        Figure(name="a judged commit", values=seconds, limit=PER_COMMIT_S),
        Figure(name="of which making a worktree", values=[checkout_seconds(repo, new)]),
    ]
    return finished(figures, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
