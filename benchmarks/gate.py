"""Which real bugs the gates find: runs each gate on bugs of its project and on main.

Writes the tables of docs/generated/gates.md.

    .venv/bin/python benchmarks/gate.py CLONE [--fork megatron-lm] [--only ID] [--folder gate-runs] [--again]

CLONE is a clone of the project, with its submodules; its own files are not touched. gate.toml names projects and bugs.
Each bug gets a worktree of the commit before its fix, or of main with the fix reverted, and in it runs the gate as a
fork would. The bug counts if the cell that gate.toml names fails in the check that it names, and on an old commit only
if the same cell does not fail so once the fix is there. On main all cells must pass. Runs are kept in --folder and not
repeated without --again. Exit code 1 when a bug is not found or main is not green; the table is written only when all
are right.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomllib

from harness.core.outcomes import Finding, Outcome
from harness.core.run.report import Report, ReportCell
from harness.reporting.render_json import read_report

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "generated" / "gates.md"
STACK = "fork"  # of the matrix
RECIPE = f"{STACK}: working-tree"
OLDER = (
    STACK
    + """:
    - {{checkout: "{code}", package: megatron-lm}}
    - {{packages: [datasets==4.4.1, transformers==4.57.1, psutil==7.2.2]}}"""
)
GREEN = (Outcome.PASS, Outcome.XFAIL)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A row of gate.toml, whose first lines explain the fields."""

    id: str
    title: str
    fix: str
    ref: str = ""  # empty: main
    revert: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    older: bool = False
    cell: str
    check: str
    says: str

    @property
    def code(self) -> str:
        """Which code has the bug, e.g. "5e4fc931ba~1" or "main without 50546da7d9"."""
        without = f" without {' and '.join(self.revert)}" if self.revert else ""
        return f"{self.ref or 'main'}{without}"

    @property
    def folder(self) -> str:
        return self.id.strip("#").replace(" ", "-")

    @property
    def fixed(self) -> Bug | None:
        """The same with the fix; None if that is main."""
        if not self.ref:
            return None
        ref = self.ref if self.revert else self.ref.removesuffix("~1")
        return replace(self, id=f"{self.id} fixed", ref=ref, revert=())


MAIN = Bug(id="main", title="", fix="", cell="", check="", says="")


@dataclass(frozen=True, kw_only=True)
class Fork:
    """A project of gate.toml."""

    name: str
    url: str
    matrix: Path
    main: str  # the commit that stands for main
    bugs: tuple[Bug, ...] = ()

    @property
    def mark(self) -> str:
        """The line before its table."""
        return f"<!-- benchmarks/gate.py {self.name} -->\n"

    def link(self, bug: Bug) -> str:
        kind, name = ("pull", bug.id[1:]) if bug.id.startswith("#") else ("commit", bug.id)
        return f"[{bug.id}]({self.url}/{kind}/{name})"


def read_forks(text: str) -> dict[str, Fork]:
    """The projects by name, with their bugs."""
    raw = tomllib.loads(text)
    forks = {}
    for name, row in raw["fork"].items():
        bugs = row.pop("bug")
        rows: list[dict[str, Any]] = [
            {key: tuple(v) if isinstance(v, list) else v for key, v in bug.items()} for bug in bugs
        ]
        matrix = ROOT / "matrices" / row.pop("matrix")
        forks[name] = Fork(name=name, matrix=matrix, bugs=tuple(Bug(**bug) for bug in rows), **row)
    return forks


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all runs of a project share."""

    fork: Fork
    clone: Path
    folder: Path  # of the runs
    again: bool = False


def git(folder: Path, *words: str, given: bytes | None = None) -> bytes:
    return subprocess.run(["git", "-C", folder, *words], input=given, stdout=subprocess.PIPE, check=True).stdout


def submodules(place: Path) -> dict[str, str]:
    """Path -> commit of the submodules of a worktree."""
    rows = [
        row.split() for row in git(place, "ls-tree", "-r", "HEAD").decode().splitlines() if row.startswith("160000")
    ]
    return {path: commit for _, _, commit, path in rows}


@contextmanager
def worktree(bench: Bench, place: Path, bug: Bug) -> Iterator[Path]:
    """A worktree of the bad code, as long as it is needed."""
    git(bench.clone, "worktree", "add", "--quiet", "--force", "--detach", str(place), bug.ref or bench.fork.main)
    modules = {path: commit for path, commit in submodules(place).items() if (bench.clone / path / ".git").exists()}
    try:
        for path, commit in modules.items():
            git(bench.clone / path, "worktree", "add", "--quiet", "--force", "--detach", str(place / path), commit)
        for fix in bug.revert:
            undo = git(place, "diff", "--binary", fix, f"{fix}~1", "--", *bug.paths)
            git(place, "apply", "--3way", "--index", given=undo)
        yield place
    finally:
        for path in modules:
            git(bench.clone / path, "worktree", "remove", "--force", str(place / path))
        git(bench.clone, "worktree", "remove", "--force", str(place))


def run(bench: Bench, bug: Bug, words: Sequence[str] = ()) -> Report:
    """The gate on the bad code; its report is kept in the bug's folder. `words`: more arguments of `harness run`."""
    folder, matrix = bench.folder / bug.folder, bench.fork.matrix
    with worktree(bench, bench.folder / f"{bug.folder}-code", bug) as place:
        if bug.older:
            matrix = bench.folder / matrix.name
            text = bench.fork.matrix.read_text(encoding="utf-8")
            matrix.write_text(text.replace(RECIPE, OLDER.format(code=place)), encoding="utf-8")
        command = [sys.executable, "-m", "harness", "run", str(matrix), "--run-dir", str(folder), "--no-history"]
        code = subprocess.run([*command, *words], cwd=place, stdout=sys.stderr).returncode
    made = sorted(folder.glob("*/report.json"))
    if code not in (0, 1, 3) or not made:
        raise SystemExit(f"{bug.id}: harness run ended with {code}")
    shutil.copy(made[-1], folder / "report.json")
    return read_report((folder / "report.json").read_text(encoding="utf-8"))


def report_of(bench: Bench, bug: Bug, words: Sequence[str] = ()) -> Report:
    """The report of the bug's run, which is made if it is not there."""
    file = bench.folder / bug.folder / "report.json"
    if file.is_file() and not bench.again:
        return read_report(file.read_text(encoding="utf-8"))
    print(f"== {bug.id}: {bug.code}", file=sys.stderr, flush=True)
    return run(bench, bug, words)


def plain_id(cell: ReportCell) -> str:
    """The id without stack and hash: as gate.toml writes it."""
    return cell.id.rpartition("-")[0].replace(f"-{STACK}", "")


def found_by(bug: Bug, report: Report) -> list[tuple[ReportCell, Finding]]:
    """The failed cells that the bug names, each with its finding of the check and the text that the bug names."""
    fitting = [cell for cell in report.cells if cell.role == "cell" and fnmatchcase(plain_id(cell), bug.cell)]
    return [
        (cell, finding)
        for cell in fitting
        if cell.outcome is Outcome.FAIL
        for finding in cell.findings
        if finding.check == bug.check and bug.says in finding.message
    ]


def red(report: Report) -> list[ReportCell]:
    return [cell for cell in report.cells if cell.outcome not in GREEN]


def problems(bugs: Sequence[Bug], reports: dict[str, Report]) -> list[str]:
    """What contradicts the claim that the gate finds every bug and passes on main."""
    said = [f"{bug.id}: not run" for bug in (MAIN, *bugs) if bug.id not in reports]
    for bug in bugs:
        if bug.id in reports and not found_by(bug, reports[bug.id]):
            failed = [f"{plain_id(cell)} {sorted({f.check for f in cell.findings})}" for cell in red(reports[bug.id])]
            said.append(f"{bug.id}: not found by {bug.check} in {bug.cell}; red: {failed or 'nothing'}")
        fixed = bug.fixed
        if fixed and fixed.id not in reports:
            said.append(f"{fixed.id}: not run")
        elif fixed and found_by(bug, reports[fixed.id]):
            said.append(f"{bug.id}: found on {fixed.code} as well")
    if MAIN.id in reports:
        said += [f"main: {cell.id} is {cell.outcome}" for cell in red(reports[MAIN.id])]
    return said


def table(fork: Fork, reports: dict[str, Report]) -> str:
    """The table of the project in docs/generated/gates.md."""
    lines = ["| fix | what was wrong | run on | red in | check | other red cells |", "|---|---|---|---|---|---|"]
    for bug in fork.bugs:
        cell, finding = found_by(bug, reports[bug.id])[0]
        others = len(red(reports[bug.id])) - 1
        row = (fork.link(bug), bug.title, bug.code, f"`{plain_id(cell)}`", f"`{finding.check}`", str(others or "none"))
        lines.append(f"| {' | '.join(row)} |")
    return "".join(f"{line}\n" for line in lines)


def written(fork: Fork, made: str, page: str) -> str:
    """The page with the table of the project."""
    return re.sub(rf"(?m)^{re.escape(fork.mark)}(?:\|.*\n)*", lambda _: fork.mark + made, page)


def arguments(forks: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--fork", choices=forks, default="megatron-lm")
    parser.add_argument("--folder", type=Path, default=Path("gate-runs"))
    parser.add_argument("--only", action="append", metavar="ID")
    parser.add_argument("--again", action="store_true")
    return parser.parse_args()


def main() -> int:
    forks = read_forks((ROOT / "benchmarks" / "gate.toml").read_text(encoding="utf-8"))
    given = arguments([*forks])
    fork = forks[given.fork]
    bench = Bench(
        fork=fork,
        clone=given.clone.resolve(),
        folder=(given.folder / fork.name).resolve(),
        again=given.again,
    )
    bench.folder.mkdir(parents=True, exist_ok=True)
    chosen = [bug for bug in (MAIN, *fork.bugs) if not given.only or bug.id in given.only]
    reports: dict[str, Report] = {}
    for bug in chosen:
        reports[bug.id] = report_of(bench, bug)
        found = found_by(bug, reports[bug.id])
        if bug.fixed and found:
            words = ["--only", f"{found[0][0].id.rpartition('-')[0]}-*"]
            reports[bug.fixed.id] = report_of(bench, bug.fixed, words)
    wrong = problems([bug for bug in fork.bugs if bug in chosen], reports)
    print("\n".join(wrong) or f"{len(chosen) - (MAIN in chosen)} bugs found")
    if not wrong and not given.only:
        PAGE.write_text(written(fork, table(fork, reports), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
