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

from harness.app import plugins, process
from harness.app.arguments import RUN_PARENT
from harness.app.commands import compare as compare_command
from harness.app.pipeline.finalize import FinalizeOptions
from harness.app.pipeline.plan_run import PlanRequest
from harness.core.errors import (
    HarnessError,
    InfrastructureError,
    InputError,
    InternalError,
    InterruptedRun,
    Problem,
)
from harness.core.outcomes import Finding, Outcome
from harness.core.run.run_dir import protect_new_files
from harness.core.run.run_plan import Expansion, PlannedCell, RejectedCell
from harness.core.tolerances import SLOWER_RUN, Bound
from harness.infra import screen
from harness.infra.inputs.files import matrix_path
from harness.judge.compare.runs import CellChange, Comparison, compare_runs
from harness.judge.report.model import Report, ReportCell, ReportRejected

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
    show: bool = False,
) -> Report:
    """Run a matrix and judge it, as `harness run` does; returns when every cell has ended.

    `matrix`: a file, or the name of a shipped one. `only`, `expression` (-k), `failed`, `settings`
    (--set), `cluster`, `run_dir`, `history`, `notify`, `maxfail`, `max_gpu_hours`, `fault`: as the options. `record`
    False: as --no-history. `show`: print what the command prints.

    The files of the run are in its `run_folder`. A failed check is no error: see `Report.verdict`. InputError
    for a wrong matrix or option; InfrastructureError when nothing could be run; InterruptedRun after Ctrl-C, when the
    cells that had ended are judged.
    """
    from harness.app.commands import run as command
    from harness.app.selection import failed_cells

    found: list[Report] = []
    with _as_command(show):
        file, parent = matrix_path(os.fspath(matrix)), Path(run_dir) if run_dir is not None else None
        again = failed_cells(file, parent or RUN_PARENT) if failed else []
        request = _request(file, [*only, *again], expression, settings, cluster, fault)
        options = _options(record, history, notify, found)
        options = replace(options, most_failures=maxfail)
        command.run(request, parent, dry_run=False, max_gpu_hours=max_gpu_hours, options=options)
        if not found:  # Ctrl-C while Slurm jobs were followed
            raise InterruptedRun("interrupted; the jobs keep running: `harness resume` follows and judges them")
    return found[-1]


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
    from harness.app.commands import inspect

    found: list[Report] = []
    with _as_command(show):
        inspect.report(os.fspath(run), Path(run_dir), _options(record, history, notify, found))
    return found[-1]


def run_folder(report: Report, *, run_dir: PathLike = RUN_PARENT) -> Path:
    """The folder with the files of a run: report.html, logs, records. InputError when it is not found.

    `run_dir`: where to look unless `run` or `report` of this process returned the report.
    """
    from harness.app.selection import find_run

    with _as_command(False):
        return _FOLDERS.get(report.run_id) or find_run(report.run_id, Path(run_dir)).root


def read_report(run: PathLike, *, run_dir: PathLike = RUN_PARENT) -> Report:
    """The report of a run as it was written, or a saved report.json; judges nothing. `run`: as in `report`."""
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
    """The cells that `run` would run, and the combinations that rules reject, with reasons; starts nothing."""
    from harness.app.pipeline.plan_run import plan_run

    with _as_command(False):
        return plan_run(_request(matrix_path(os.fspath(matrix)), only, expression, settings, cluster)).plan.expansion


def compare(
    before: Report | PathLike,
    after: Report | PathLike,
    *,
    slower_than: float | None = None,
    run_dir: PathLike = RUN_PARENT,
) -> Comparison:
    """What changed from one run to another, as `harness compare --json` finds it; writes no file.

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


def _request(
    file: Path,
    only: Sequence[str],
    expression: str,
    settings: Settings,
    cluster: str | None,
    fault: str | None = None,
) -> PlanRequest:
    """The request, with the command line that asks for the same."""
    pairs = (
        [f"{key}={_written(key, value)}" for key, value in settings.items()] if isinstance(settings, Mapping) else []
    )
    given = pairs or list(settings)
    command = ["harness", "run", str(file)]
    for option, values in (("--only", only), ("--set", given)):
        command += [word for value in values for word in (option, value)]
    command += ["-k", expression] if expression else []
    command += ["--cluster", cluster] if cluster else []
    command += ["--fault", fault] if fault is not None else []
    return PlanRequest(
        matrix=file,
        only=only,
        settings=given,
        expression=expression,
        command=command,
        cluster=cluster,
        fault=fault,
    )


def _written(key: str, value: object) -> str:
    """The value as JSON, which YAML contains."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        allowed = "numbers, texts, booleans, None, and lists and mappings of them"
        problem = Problem(key=f"settings[{key!r}]", message="no value of a matrix", found=repr(value), allowed=allowed)
        raise InputError(problem) from error


def _options(record: bool, history: PathLike | None, notify: Sequence[str], found: list[Report]) -> FinalizeOptions:
    from harness.infra.notify import problem_of

    if problems := [Problem(key="notify", message=wrong) for one in notify if (wrong := problem_of(one))]:
        raise InputError(problems)

    def reported(made: Report, folder: Path) -> None:
        found.append(made)
        _FOLDERS[made.run_id] = folder

    file = Path(history) if history is not None else None
    return FinalizeOptions(record=record, history=file, notify=tuple(notify), reported=reported)


@contextmanager
def _as_command(show: bool) -> Iterator[None]:
    """What the command line does around a command: permissions of new files, output, errors that are none of ours."""
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
