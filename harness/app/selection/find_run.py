"""Finds a run directory by its path, a path of a file in it, its id or the beginning of it, or 'latest'."""

from __future__ import annotations

import difflib
from contextlib import suppress
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.run.run_dir import RunDir
from harness.infra.inputs.files import is_file, is_folder
from harness.infra.runs.lock import launcher_of


def _started(folder: Path) -> float:
    """When a run began: commands that read a run write into its folder. 0 when it has just been removed."""
    for first in ("plan.json", "cells"):
        with suppress(OSError):
            return (folder / first).stat().st_mtime
    return 0.0


def _with(file: str, run_parent: Path) -> list[Path]:
    """The folders that have a file of this name, the newest last."""
    found = run_parent.glob(f"*/{file}") if is_folder(run_parent) else ()
    return sorted((path.parent for path in found), key=_started)


def find_run(name: str, run_parent: Path) -> RunDir:
    """The run directory that a word names. InputError when there is none, it has no plan, or several begin with it."""
    known = _with("plan.json", run_parent)
    unplanned = [folder for folder in _with("cells", run_parent) if folder not in known]
    if name == "latest" and (runs := sorted([*known, *unplanned], key=_started)):
        if runs[-1] in unplanned:
            raise InputError(_no_plan(runs[-1]))
        return RunDir(runs[-1].resolve())
    inside = [Path(name).parent] if is_file(Path(name)) else []  # e.g. RUN/report.html
    for candidate in (Path(name), run_parent / name, *inside):
        if is_file(candidate / "plan.json"):
            return RunDir(candidate.resolve())
    begun = [path for path in known if name and path.name.startswith(name)]
    if len(begun) == 1:
        return RunDir(begun[0].resolve())
    for folder in unplanned:
        named = folder.name.startswith(name) or (is_folder(Path(name)) and folder.samefile(name))
        if name and named and not begun:
            raise InputError(_no_plan(folder))
    raise InputError(_no_run(name, run_parent, known, begun))


def _no_plan(folder: Path) -> Problem:
    """Of a run whose first cell began before the others were named."""
    if launcher := launcher_of(RunDir(folder)):
        return Problem(message=f"the launcher still names the run's cells: {launcher}", file=str(folder))
    again = "remove the folder and start the run again"
    return Problem(message="the launcher ended before it had named all cells of the run", file=str(folder), hint=again)


def _no_run(name: str, run_parent: Path, known: list[Path], begun: list[Path]) -> Problem:
    if begun:
        listed = ", ".join(path.name for path in begun[-3:])
        return Problem(message=f"{len(begun)} runs begin with {name!r}", allowed=f"more of the id of one: {listed}")
    listed = ", ".join(path.name for path in known[-3:]) or f"none under {run_parent}"
    near = difflib.get_close_matches(name, [path.name for path in known], n=1)
    hint = f"did you mean {near[0]}?" if near else "`harness list` shows all runs" if known else None
    return Problem(
        message=f"no run {name!r}", allowed=f"a path, 'latest', or an id or its beginning: {listed}", hint=hint
    )
