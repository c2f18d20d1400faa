"""Finds a run directory by its path, a path of a file in it, its id or the beginning of it, or 'latest'."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.run.run_dir import RunDir
from harness.infra.inputs.text_file import is_file, is_folder


def _changed(folder: Path) -> float:
    """Modification time of a run directory; 0 when it has just been removed."""
    with suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _plans(run_parent: Path) -> Iterable[Path]:
    return run_parent.glob("*/plan.json") if is_folder(run_parent) else ()


def find_run(name: str, run_parent: Path) -> RunDir:
    """The run directory that a word names. InputError when there is none, or several begin with it."""
    known = sorted((path.parent for path in _plans(run_parent)), key=_changed)
    if name == "latest" and known:
        return RunDir(known[-1].resolve())
    inside = [Path(name).parent] if is_file(Path(name)) else []  # e.g. RUN/report.html
    for candidate in (Path(name), run_parent / name, *inside):
        if is_file(candidate / "plan.json"):
            return RunDir(candidate.resolve())
    begun = [path for path in known if name and path.name.startswith(name)]
    if len(begun) == 1:
        return RunDir(begun[0].resolve())
    raise InputError(_no_run(name, run_parent, known, begun))


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
