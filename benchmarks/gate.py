"""Which real bugs of Megatron-LM matrices/gate.yaml finds: runs it on each and on main, writes the table of its page.

    .venv/bin/python benchmarks/gate.py CLONE [--only ID] [--folder gate-runs] [--again]

CLONE is a clone of Megatron-LM; its own files are not touched. gate.toml names the bugs. Each gets a worktree of the
commit before its fix, or of main with the fix reverted, and in it runs the gate as a fork would.
The bug counts if the cell that gate.toml names fails in the check that it names. On main all cells must pass.
Runs are kept in --folder and not repeated without --again. Exit code 1 when a bug is not found or main is not green;
the table is written only when all are right.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import tomllib

from harness.core.outcomes import Finding, Outcome
from harness.judge.report.model import Report, ReportCell
from harness.judge.report.render_json import read_report

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "matrices" / "gate.yaml"
PAGE = ROOT / "docs" / "gate.md"
TABLE = re.compile(r"(?m)^<!-- benchmarks/gate.py -->\n(?:\|.*\n)*")
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
        return self.id.strip("#")


MAIN = Bug(id="main", title="", fix="", cell="", check="", says="")


def read_bugs(text: str) -> tuple[str, list[Bug]]:
    """The commit that stands for main, and the bugs."""
    raw = tomllib.loads(text)
    rows = [{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()} for row in raw["bug"]]
    return raw["main"], [Bug(**row) for row in rows]


def git(folder: Path, *words: str, given: bytes | None = None) -> bytes:
    return subprocess.run(["git", "-C", folder, *words], input=given, stdout=subprocess.PIPE, check=True).stdout


@contextmanager
def worktree(clone: Path, place: Path, bug: Bug, main: str) -> Iterator[Path]:
    """A worktree of the bad code, as long as it is needed."""
    git(clone, "worktree", "add", "--quiet", "--force", "--detach", str(place), bug.ref or main)
    try:
        for commit in bug.revert:
            undo = git(place, "diff", "--binary", commit, f"{commit}~1", "--", *bug.paths)
            git(place, "apply", "--3way", "--index", given=undo)
        yield place
    finally:
        git(clone, "worktree", "remove", "--force", str(place))


def run(bug: Bug, main: str, clone: Path, folder: Path, words: Sequence[str] = ()) -> None:
    """The gate on the bad code; leaves folder/report.json. `words`: more arguments of `harness run`."""
    with worktree(clone, folder.parent / f"{folder.name}-code", bug, main) as place:
        matrix = MATRIX
        if bug.older:
            matrix = folder.parent / MATRIX.name
            matrix.parent.mkdir(parents=True, exist_ok=True)
            text = MATRIX.read_text(encoding="utf-8")
            matrix.write_text(text.replace(RECIPE, OLDER.format(code=place)), encoding="utf-8")
        command = [sys.executable, "-m", "harness", "run", str(matrix), "--run-dir", str(folder), "--no-history"]
        code = subprocess.run([*command, *words], cwd=place, stdout=sys.stderr).returncode
    made = sorted(folder.glob("*/report.json"))
    if code not in (0, 1, 3) or not made:
        raise SystemExit(f"{bug.id}: harness run ended with {code}")
    shutil.copy(made[-1], folder / "report.json")


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
    if MAIN.id in reports:
        said += [f"main: {cell.id} is {cell.outcome}" for cell in red(reports[MAIN.id])]
    return said


def table(bugs: Sequence[Bug], reports: dict[str, Report]) -> str:
    """The table of docs/gate.md."""
    lines = ["| fix | what was wrong | run on | red in | check | other red cells |", "|---|---|---|---|---|---|"]
    for bug in bugs:
        cell, finding = found_by(bug, reports[bug.id])[0]
        others = len(red(reports[bug.id])) - 1
        row = (link(bug), bug.title, bug.code, f"`{plain_id(cell)}`", f"`{finding.check}`", str(others or "none"))
        lines.append(f"| {' | '.join(row)} |")
    return "".join(f"{line}\n" for line in lines)


def link(bug: Bug) -> str:
    if bug.id.startswith("#"):
        return f"[{bug.id}](https://github.com/NVIDIA/Megatron-LM/pull/{bug.id[1:]})"
    return f"[{bug.id}](https://github.com/NVIDIA/Megatron-LM/commit/{bug.id})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("gate-runs"))
    parser.add_argument("--only", action="append", metavar="ID")
    parser.add_argument("--again", action="store_true")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    commit, bugs = read_bugs((ROOT / "benchmarks" / "gate.toml").read_text(encoding="utf-8"))
    folder = given.folder.resolve()
    chosen = [bug for bug in (MAIN, *bugs) if not given.only or bug.id in given.only]
    for bug in chosen:
        if given.again or not (folder / bug.folder / "report.json").is_file():
            print(f"== {bug.id}: {bug.code}", file=sys.stderr)
            run(bug, commit, given.clone.resolve(), folder / bug.folder)
    files = {bug.id: folder / bug.folder / "report.json" for bug in chosen}
    reports = {name: read_report(file.read_text(encoding="utf-8")) for name, file in files.items()}
    wrong = problems([bug for bug in bugs if bug in chosen], reports)
    print("\n".join(wrong) or f"{len(reports) - (MAIN.id in reports)} bugs found")
    if not wrong and not given.only:
        made = f"<!-- benchmarks/gate.py -->\n{table(bugs, reports)}"
        PAGE.write_text(TABLE.sub(lambda _: made, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
