"""The Python interface, which `import harness` offers: what the commands of the same names do, with values as results.

Nothing is printed unless asked for: what the command line would print goes to the logger `harness`, what it would
print to stderr as warnings. Errors are HarnessError or a subclass. docs/api.md shows every function.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from harness.campaign import plugins
from harness.campaign.announce import without_secrets
from harness.campaign.finalize import RunResult
from harness.campaign.options import RUN_PARENT, PlanOptions, RunOptions, command_words
from harness.cli.commands import compare as compare_command
from harness.core.errors import (
    HarnessError,
    InfrastructureError,
    InputError,
    InternalError,
    InterruptedRun,
    Problem,
)
from harness.core.outcomes import Finding, Outcome
from harness.core.run.report import Report, ReportCell, ReportRejected
from harness.core.run.run_dir import protect_new_files
from harness.core.run.run_plan import Expansion, PlannedCell, RejectedCell
from harness.core.tolerances import SLOWER_RUN, Bound
from harness.infra import process, screen
from harness.infra.files import matrix_path
from harness.reporting.compare.runs import CellChange, Comparison, compare_runs

__all__ = [
    "CellChange",
    "Comparison",
    "Expansion",
    "Finding",
    "HarnessError",
    "InfrastructureError",
    "InputError",
    "InternalError",
    "InterruptedRun",
    "Outcome",
    "PlannedCell",
    "Problem",
    "RejectedCell",
    "Report",
    "ReportCell",
    "ReportRejected",
    "compare",
    "expand",
    "read_report",
    "report",
    "run",
    "run_folder",
]
PathLike = str | os.PathLike[str]
Settings = Mapping[str, object] | Sequence[str]  # key -> any JSON value, or texts like "train.steps=5"
_FOLDERS: dict[str, Path] = {}  # run id -> folder of the runs that this process ran or judged


def run(
    matrix: PathLike,
    *,
    only: Sequence[str] = (),
    expression: str = "",
    failed: bool = False,
    settings: Settings = (),
    cluster: str | None = None,
    run_dir: PathLike | None = None,
    record: bool = True,
    history: PathLike | None = None,
    notify: Sequence[str] = (),
    maxfail: int | None = None,
    max_gpu_hours: float | None = None,
    fault: str | None = None,
    since: str | None = None,
    show: bool = False,
) -> Report:
    """Run a matrix and judge it, as `harness run` does; returns when every cell has ended.

    `matrix`: a file, or the name of a shipped one. `only`, `expression` (-k), `failed`, `settings`
    (--set), `cluster`, `run_dir`, `history`, `notify`, `maxfail`, `max_gpu_hours`, `fault`, `since`: as the options.
    `record` False: as --no-history. `show`: print what the command prints.

    The files of the run are in its `run_folder`. A failed check is not an error: see `Report.verdict`. InputError
    for a wrong matrix or option; InfrastructureError when nothing could be run; InterruptedRun after Ctrl-C, when the
    cells that had ended are judged.
    """
    from harness.cli.commands import run as run_command
    from harness.inputs.working_tree import matrix_here

    with _as_command(show):
        file = matrix_here(matrix_path(os.fspath(matrix)))
        options = RunOptions(
            only=only,
            expression=expression,
            failed=failed,
            settings=_settings(settings),
            cluster=cluster,
            run_dir=_path(run_dir),
            record=record,
            history=_path(history),
            notify=_receivers(notify),
            maxfail=maxfail,
            max_gpu_hours=max_gpu_hours,
            fault=fault,
            since=since,
        )
        command = without_secrets(["harness", "run", str(file), *command_words(options)])
        result = run_command.run(file, options, command)
        if result.report is None:  # Ctrl-C while Slurm jobs were followed
            raise InterruptedRun("interrupted; the jobs keep running: `harness resume` follows and judges them")
    return _remembered(result)


def report(
    run: PathLike,
    *,
    run_dir: PathLike = RUN_PARENT,
    record: bool = True,
    history: PathLike | None = None,
    notify: Sequence[str] = (),
    show: bool = False,
) -> Report:
    """Judge a finished run again and write its reports, as `harness report` does; trains nothing.

    `run`: a path, a run id or its beginning, or "latest". Options as in `run`.
    """
    from harness.cli.commands import inspect

    with _as_command(show):
        options = RunOptions(record=record, history=_path(history), notify=_receivers(notify))
        return _remembered(inspect.report(os.fspath(run), Path(run_dir), options))


def run_folder(report: Report, *, run_dir: PathLike = RUN_PARENT) -> Path:
    """Return the folder with the files of a run: report.html, logs, records. InputError when it is not found.

    `run_dir`: where to look unless `run` or `report` of this process returned the report.
    """
    from harness.campaign.selection import find_run

    with _as_command(False):
        return _FOLDERS.get(report.run_id) or find_run(report.run_id, Path(run_dir)).root


def read_report(run: PathLike, *, run_dir: PathLike = RUN_PARENT) -> Report:
    """Return the report of a run as it was written, or a saved report.json; judges nothing. `run`: as in `report`."""
    with _as_command(False):
        return compare_command.read(os.fspath(run), Path(run_dir))[0]


def expand(
    matrix: PathLike,
    *,
    only: Sequence[str] = (),
    expression: str = "",
    settings: Settings = (),
    cluster: str | None = None,
) -> Expansion:
    """Return the cells that `run` would run, and the combinations that rules reject, with reasons; starts nothing."""
    from harness.campaign.plan_run import plan_run
    from harness.inputs.working_tree import matrix_here

    with _as_command(False):
        options = PlanOptions(only=only, expression=expression, settings=_settings(settings), cluster=cluster)
        return plan_run(matrix_here(matrix_path(os.fspath(matrix))), options).plan.expansion


def compare(
    before: Report | PathLike,
    after: Report | PathLike,
    *,
    slower_than: float | None = None,
    run_dir: PathLike = RUN_PARENT,
) -> Comparison:
    """Return what changed from one run to another, as `harness compare --json` finds it; writes no file.

    Each run: a report, or a word as in `read_report`. `slower_than`: ratio of times that counts as a regression.
    """
    with _as_command(False):
        if slower_than is not None and not slower_than > 1:
            allowed = "a factor above 1"
            raise InputError(Problem(message="not usable", key="slower_than", found=repr(slower_than), allowed=allowed))
        first, second = (
            one if isinstance(one, Report) else compare_command.read(os.fspath(one), Path(run_dir))[0]
            for one in (before, after)
        )
        slower = Bound(value=slower_than, unit="factor", origin="slower_than") if slower_than else SLOWER_RUN
        return compare_runs(first, second, slower=slower)


def _path(given: PathLike | None) -> Path | None:
    return None if given is None else Path(given)


def _settings(given: Settings) -> list[str]:
    """As --set has them."""
    if isinstance(given, Mapping):
        return [f"{key}={_written(key, value)}" for key, value in given.items()]
    return list(given)


def _written(key: str, value: object) -> str:
    """Return the value as JSON, which YAML contains."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        allowed = "numbers, texts, booleans, None, and lists and mappings of them"
        problem = Problem(key=f"settings[{key!r}]", message="no value of a matrix", found=repr(value), allowed=allowed)
        raise InputError(problem) from error


def _receivers(given: Sequence[str]) -> Sequence[str]:
    """As given; InputError when one is none."""
    from harness.reporting.notify import problem_of

    if problems := [Problem(key="notify", message=wrong) for one in given if (wrong := problem_of(one))]:
        raise InputError(problems)
    return given


def _remembered(result: RunResult) -> Report:
    """Return the report; `run_folder` finds its folder."""
    assert result.report is not None and result.folder is not None
    _FOLDERS[result.report.run_id] = result.folder
    return result.report


@contextmanager
def _as_command(show: bool) -> Iterator[None]:
    """What the command line does around a command: permissions of new files, output, unexpected errors."""
    umask = os.umask(0o022)
    os.umask(umask)
    before = replace(screen.VIEW)
    try:
        protect_new_files()
        plugins.active()
        screen.VIEW.silent = not show
        screen.VIEW.quiet = not show
        yield
    except HarnessError:
        raise
    except Exception as error:
        raise process.uncaught(error) from error
    finally:
        screen.VIEW.silent, screen.VIEW.quiet = before.silent, before.quiet
        os.umask(umask)
