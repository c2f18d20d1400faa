"""`harness report`, `status`, `logs` and `cancel`: commands on an existing run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from harness.campaign.finalize import RunResult, judge_and_report
from harness.campaign.options import RunOptions
from harness.campaign.selection import find_run
from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED
from harness.core.run.run_dir import RunDir
from harness.infra import screen
from harness.infra.screen import relative_path


def report(name: str, run_parent: Path, options: RunOptions) -> RunResult:
    """Judge a run directory again and rewrite its reports."""
    from harness.runs.evidence_files import read_plan

    directory = find_run(name, run_parent)
    return judge_and_report(directory, read_plan(directory), options)


def status(name: str, run_parent: Path, *, as_json: bool = False) -> int:
    """Print the progress of a run: cells by status, jobs by state."""
    from harness.core.serialization import dumps
    from harness.launch.status import status_of
    from harness.runs.evidence_files import read_plan

    directory = find_run(name, run_parent)
    found = status_of(directory, read_plan(directory))
    if as_json:
        screen.json_data(dumps(found, indent=2) + "\n")
    else:
        screen.out(found.text)
    return EXIT_PASS


def cancel(name: str, run_parent: Path) -> int:
    """End the jobs of a run; the files that its cells have written stay and can be judged."""
    from harness.campaign.launch import launcher_of
    from harness.runs.evidence_files import read_plan

    directory = find_run(name, run_parent)
    done = launcher_of(directory).cancel(directory, read_plan(directory))
    screen.out(f"jobs: {done.text}\n  judge their files: harness report {shlex.quote(relative_path(directory.root))}")
    return EXIT_UNDECIDED if done.left else EXIT_PASS


def errors(name: str, run_parent: Path, cell: str | None) -> int:
    """Print the traceback of the rank that failed first, of every failed cell or of the named ones."""
    from harness.runs.logs import errors_text

    directory = find_run(name, run_parent)
    for piece in errors_text(directory, _cells(directory, cell)):
        screen.out(piece if "\n" in piece else screen.wrapped(piece))  # log lines stay as they are
    return EXIT_PASS


def follow(name: str, run_parent: Path, cell: str | None) -> int:
    """Print what the run and its logs say, as it comes, until the run has ended."""
    from harness.runs.logs import follow_logs as followed

    directory = find_run(name, run_parent)
    for line in followed(directory, _cells(directory, cell), whole=cell is None):
        screen.out(line)
        sys.stdout.flush()
    return EXIT_PASS


def _cells(directory: RunDir, pattern: str | None) -> list[str]:
    """Return ids of the cells that a pattern names; all without one."""
    from harness.campaign.selection import matching
    from harness.runs.evidence_files import read_plan

    expansion = read_plan(directory).expansion
    return [cell.id for cell in expansion.cells] if pattern is None else matching(expansion, pattern)


def logs(name: str, run_parent: Path, cell: str | None, rank: int | None) -> int:
    """Print the last lines of the logs of the run's jobs and agents, or of the ranks of cells."""
    from harness.campaign.selection import matching
    from harness.runs.evidence_files import read_plan
    from harness.runs.logs import job_logs_text, logs_of

    directory = find_run(name, run_parent)
    if cell is None:
        if rank is not None:
            raise InputError(Problem(key="--rank", message="needs a cell", hint="harness logs RUN CELL --rank N"))
        screen.out(job_logs_text(directory))
        return EXIT_PASS
    for piece in logs_of(directory, matching(read_plan(directory).expansion, cell), rank):
        screen.out(piece, end="")
    return EXIT_PASS
