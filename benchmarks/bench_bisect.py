"""The cost of a bisection: number of judged commits, and seconds per judged commit.

    .venv/bin/python benchmarks/bench_bisect.py [--repo ../Megatron-LM] [--commits 500] [--runs 1]

In a clone of Megatron-LM a matrix of two cells is judged over `--commits` commits around the one that gave all pipeline
stages their packed metadata, which has to be found. Every run judges from scratch; a first run that is not counted
builds the environments. Without a clone it is one cell over commits of the installed Megatron, one of which breaks
max_seqlen. The time of a round includes making the worktrees, which is also printed separately. Run it on an idle
machine of two cores.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from figures import ROOT, Figure, finished, parser

from harness.core.serialization import from_jsonable, loads
from harness.reporting.bisection import Bisection
from tests.bisected import BROKEN, KEPT, PARAMS, checkout, copied, matrix_of

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


@dataclass(frozen=True)
class Search:
    """What is searched, and which commit must be found."""

    repo: Path
    matrix: str
    old: str
    new: str
    guilty: str
    find: str  # as harness bisect has it


def in_clone(repo: Path, commits: int) -> Search:
    old, new = ends_of(repo, commits)
    return Search(repo, MATRIX, old, new, FIX, "fixed")


def in_copy(repo: Path, commits: int) -> Search:
    """A repository of `commits` commits on the installed Megatron; one in the middle breaks it."""
    project = copied(repo)
    for number in range(commits):
        if number == commits // 2:
            project.commit("guilty", PARAMS, KEPT, BROKEN)
        else:
            project.commit(f"note {number}", "README.md", "", f"Note {number}.\n")
    old, new, guilty = project.commits["base"], git(repo, "rev-parse", "HEAD").strip(), project.commits["guilty"]
    return Search(repo, matrix_of(checkout(repo)), old, new, guilty, "introduced")


def ends_of(repo: Path, commits: int) -> tuple[str, str]:
    """(old, new) of `commits` commits along the first parents around the fix, a third of them after it."""
    after = git(repo, "rev-list", "--first-parent", "--reverse", f"{FIX}..origin/main").split()
    new = after[commits // 3 - 1]
    line = git(repo, "rev-list", "--first-parent", f"--max-count={commits + 1}", new).split()
    return line[-1], new


def bisect(search: Search) -> Run:
    good, bad = (search.new, search.old) if search.find == "fixed" else (search.old, search.new)
    with tempfile.TemporaryDirectory(prefix="bench-bisect-") as folder:
        (file := Path(folder) / "bench.yaml").write_text(search.matrix)
        command = [sys.executable, "-m", "harness", "bisect", str(file), "--repo", str(search.repo)]
        command += ["--bad", bad, "--good", good, "--find", search.find, "--first-parent", "--fresh", "--no-shrink"]
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
    options.add_argument("--repo", type=Path)
    options.add_argument("--commits", type=int, default=500)
    options.add_argument("--runs", type=int, default=1)
    arguments = options.parse_args()
    commits, runs = (4, 1) if arguments.smallest else (arguments.commits, arguments.runs)
    with tempfile.TemporaryDirectory(prefix="bench-bisect-") as folder:
        if arguments.repo:
            search = in_clone(arguments.repo.resolve(), commits)
            bisect(replace(search, old=f"{FIX}~1", new=FIX))  # makes the environment
        else:
            search = in_copy(Path(folder), commits)
        return finished(figures_of(search, commits, runs), arguments)


def figures_of(search: Search, commits: int, runs: int) -> list[Figure]:
    walls, judged, seconds = [], [], []
    for _ in range(runs):
        run = bisect(search)
        name = run.found.found.name if run.found.found else "nothing"
        if not name.startswith(search.guilty[:10]):
            raise SystemExit(f"found {name[:12]}, not {search.guilty}")
        walls.append(run.wall)
        judged.append(len(run.judged) - len(run.found.skipped))
        seconds += run.judged
    most = math.ceil(math.log2(commits)) + 2
    return [
        Figure(name=f"searching {commits} commits", values=walls),
        Figure(name="judged commits that could be judged", values=judged, unit="", limit=most, worst=True),
        Figure(name="a judged commit", values=seconds, limit=PER_COMMIT_S),
        Figure(name="of which making a worktree", values=[checkout_seconds(search.repo, search.new)]),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
