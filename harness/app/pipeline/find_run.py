"""Finds a run directory by its path, its id or 'latest'."""

from __future__ import annotations

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
    """A run directory by path, by id under the parent folder, or 'latest'. InputError when there is none."""
    known = sorted((path.parent for path in _plans(run_parent)), key=_changed)
    if name == "latest" and known:
        return RunDir(known[-1].resolve())
    for candidate in (Path(name), run_parent / name):
        if is_file(candidate / "plan.json"):
            return RunDir(candidate.resolve())
    listed = ", ".join(path.name for path in known[-3:]) or f"none under {run_parent}"
    raise InputError(Problem(message=f"no run {name!r}", allowed=f"a path, 'latest', or an id: {listed}"))
