"""Which real bugs of upstream the harness shows, and what its verdicts on clean cells are.

Writes docs/generated/scoreboard.md.

    .venv/bin/python benchmarks/scoreboard.py [--runs reports] [--run]

Every number is counted in the newest run of a matrix: a report under --runs, or what benchmarks/scoreboard_runs.json
keeps of an earlier one; the file is brought up to date, so that some matrices can be run again without the others.
scoreboard.toml names the matrices, the known bugs and the cells that show each: `bad` cells must fail where their
matrix says (XFAIL), `good` cells, without the bug, must pass. --run first runs the matrices that have no run; most
need checkouts where they expect them. Exit code 1 when a bug is not shown, a known failure is in no list, a matrix
has no run, a trainer has fewer than 100 clean cells, or one of them failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scoreboard_counts import (
    Run,
    Score,
    Table,
    clean_cells,
    distinct,
    newest,
    read_kept,
    read_table,
    release_table,
    scored,
    shown,
    unlisted,
    written,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "generated" / "scoreboard.md"
KEPT = ROOT / "benchmarks" / "scoreboard_runs.json"
INTRODUCTION = [
    "Which real bugs of upstream the harness shows, and whether it fails cells that have none. Written by",
    "`benchmarks/scoreboard.py` from runs of whole matrices; do not edit. A bug is shown if every cell that",
    "`benchmarks/scoreboard.toml` lists with it failed in the lane and with the message that its matrix demands,",
    "and every cell listed without it passed.",
]
CLEAN_CELLS = [
    "Cells without a known bug that were run, by trainer: the harness's own loop, or that of Megatron-LM,",
    "Megatron-Bridge or SkyRL. One that does not pass is a false alarm.",
]
RELEASES = [
    "What was run of each release, and of commits that were the newest of a branch: cells that passed, cells that",
    "failed as known, and cells that a rule rejected before they ran.",
]
REPOSITORIES = {
    "Megatron-LM": "NVIDIA/Megatron-LM",
    "Megatron-Bridge": "NVIDIA-NeMo/Megatron-Bridge",
    "NeMo-RL": "NVIDIA-NeMo/RL",
    "SkyRL": "NovaSky-AI/SkyRL",
    "Transformer Engine": "NVIDIA/TransformerEngine",
    "verl": "verl-project/verl",
}
CLEAN = 100  # cells without a known failure that each trainer must have


def _rows(cells: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) + " |" for row in cells]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [*_rows([head]), "|" + "---|" * len(head), *_rows(rows), ""]


def page(table: Table, runs: Mapping[str, Run]) -> str:
    """The whole of docs/generated/scoreboard.md."""
    scores = [scored(fault, runs) for fault in table.faults]
    clean = sorted(clean_cells(runs).items())
    lists = {heading: [score for score in scores if score.fault.list == name] for name, heading in table.lists.items()}
    lines = ["# Scoreboard", "", *INTRODUCTION, "", *_summary(table, runs, scores), ""]
    lines += _markdown(
        ["list", "shown", "of"], [[linked(key), str(shown(some)), str(len(some))] for key, some in lists.items()]
    )
    for heading, some in lists.items():
        lines += _section(heading, some)
    counts = [[name, str(count), str(len(failed))] for name, (count, failed) in clean]
    lines += ["## Clean cells", "", *CLEAN_CELLS, "", *_markdown(["trainer", "cells", "false alarms"], counts)]
    head = ["what", "release or branch", "passed", "known failures", "rejected"]
    lines += ["## Releases", "", *RELEASES, "", *_markdown(head, release_table(table, runs))]
    named = [[name, run.id, run.commit] for name, run in sorted(runs.items())]
    lines += ["## Runs", "", *_markdown(["matrix", "run", "commit of the harness"], named)]
    return "\n".join(lines).rstrip() + "\n"


def _summary(table: Table, runs: Mapping[str, Run], scores: Sequence[Score]) -> list[str]:
    clean = clean_cells(runs)
    total, alarms = sum(count for count, _ in clean.values()), sum(len(failed) for _, failed in clean.values())
    by_trainer = ", ".join(f"{name} {count}" for name, (count, _) in sorted(clean.items()))
    missing = ", ".join(f"`{name}`" for name in table.matrices if name not in runs)
    return [
        f"- **{distinct(scores)} distinct bugs of upstream are shown**, in {shown(scores)} rows of the lists below:",
        "  rows that name the same commit, pull request or issue count once.",
        f"- **{alarms} false alarms in {total} clean cells**, by trainer: {by_trainer}.",
        *([f"- Not run, so what only these show does not count: {missing}."] if missing else []),
    ]


def linked(fix: str) -> str:
    """The commits, pull requests, issues and reproducers of a fix as links."""
    fix = re.sub(r"\bdocs/(reproducers/\w+\.py)", r"[reproducer](../\1)", fix)
    project = next((name for name in REPOSITORIES if fix.startswith(name)), "")
    if not project:
        return fix
    home = f"https://github.com/{REPOSITORIES[project]}"
    fix = re.sub(r"\b[0-9a-f]{8,}\b", lambda found: f"[{found[0]}]({home}/commit/{found[0]})", fix)
    return re.sub(r"\b(?:pull request|issue) ([0-9]+)", lambda found: f"[{found[0]}]({home}/issues/{found[1]})", fix)


def _section(heading: str, scores: Sequence[Score]) -> list[str]:
    rows = [
        [score.fault.id, score.fault.title, linked(score.fault.fix), score.why_not or score.matrices]
        for score in sorted(scores, key=lambda score: bool(score.why_not))
    ]
    head = ["", "what was wrong", "fix or report", "shown by, or why not"]
    return [f"## {linked(heading)}", "", _shown_of(scores), "", *_markdown(head, rows)]


def _shown_of(scores: Sequence[Score]) -> str:
    """How many of a list are shown, and how many of the others cannot be."""
    gpu, old = sum(score.fault.gpu for score in scores), sum(score.fault.old for score in scores)
    parts = [f"{gpu} {'needs' if gpu == 1 else 'need'} a GPU"] * bool(gpu)
    parts += [f"{old} {'was' if old == 1 else 'were'} fixed before the oldest release that the harness runs"] * bool(
        old
    )
    left = len(scores) - gpu - old
    remain = f"{shown(scores)} of the remaining {left}" if left else "none could be shown"
    rest = f" Of the others, {' and '.join(parts)}: {remain}."
    return f"**{shown(scores)} of {len(scores)}.**{rest if parts else ''}"


def problems(table: Table, runs: Mapping[str, Run]) -> list[str]:
    """Why the page is not a good one."""
    scores = [scored(fault, runs) for fault in table.faults if not fault.why_not]
    found = [f"{score.fault.list} {score.fault.id}: {score.why_not}" for score in scores if score.why_not]
    found += [f"{name}: no run" for name in table.matrices if name not in runs]
    found += [f"a known failure that no fault lists: {cell}" for cell in unlisted(table, runs)]
    clean = clean_cells(runs)
    found += [
        f"trainer {name}: {count} clean cells, fewer than {CLEAN}"
        for name, (count, _) in clean.items()
        if count < CLEAN
    ]
    return found + [f"false alarm: {cell}" for _, failed in clean.values() for cell in failed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "reports", help="folder of run directories")
    parser.add_argument("--run", action="store_true", help="first run the matrices that have no run")
    asked = parser.parse_args()
    table = read_table((ROOT / "benchmarks" / "scoreboard.toml").read_text(encoding="utf-8"))
    kept = read_kept(KEPT.read_text(encoding="utf-8"))
    if asked.run:
        for name in (name for name in table.matrices if name not in newest(asked.runs, kept)):
            command = [sys.executable, "-m", "harness", "run", f"matrices/{name}.yaml", "--run-dir", str(asked.runs)]
            subprocess.run(command, cwd=ROOT, check=False)
    runs = {name: run for name, run in newest(asked.runs, kept).items() if name in table.matrices}
    KEPT.write_text(written(runs), encoding="utf-8")
    PAGE.write_text(page(table, runs), encoding="utf-8")
    found = problems(table, runs)
    print("\n".join(found) or f"{PAGE.name}: every listed bug is shown, no false alarm")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
