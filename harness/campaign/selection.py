"""Which cells, and which run, the words of a command line name.

`--only` and `-k` select planned cells. An expression of `-k` is as pytest has it: texts that an id contains, with and,
or, not and parentheses. `--failed` names the cells that did not pass in the newest finished run of a matrix. A run is
named by its path, a path of a file in it, its id or the beginning of it, or 'latest'.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.outcomes import Outcome
from harness.core.run.run_dir import RunDir, text_of
from harness.core.run.run_plan import Expansion
from harness.infra.files import is_file, is_folder
from harness.runs.lock import launcher_of

_PLAN = "`harness plan` lists the names"
Fits = Callable[[str], bool]
_TOKEN = re.compile(r"\s*([()]|[^\s()]+)")
_NOT_PASSED = (Outcome.FAIL, Outcome.XPASS, Outcome.ERROR, Outcome.FLAKY)


def select(expansion: Expansion, patterns: Sequence[str], expression: str = "") -> Expansion:
    """Return the cells whose id, or name without the hash, matches a pattern, with the cells that they are compared
    with.

    `expression`: only those of them whose id fits it. InputError for a pattern, or an expression, that
    matches nothing. Neither: everything.
    """
    if not patterns and not expression:
        return expansion
    problems: list[Problem] = []
    chosen: set[str] = set()
    for pattern in patterns:
        try:
            chosen |= set(matching(expansion, pattern, "--only "))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    if expression:
        fits = parse_expression(expression)
        within = chosen if patterns else {cell.id for cell in expansion.cells if cell.role == "cell"}
        chosen = {cell for cell in within if fits(cell)}
        if not chosen:
            raise InputError(Problem(key="-k", message="no cell fits", found=repr(expression), hint=_PLAN))
    chosen |= {cell.base for cell in expansion.cells if cell.id in chosen and cell.base}
    chosen |= {cell.control for cell in expansion.cells if cell.id in chosen and cell.control}
    cells = tuple(cell for cell in expansion.cells if cell.id in chosen)
    return replace(expansion, cells=cells, rejected=(), excluded={}, selection=None)


def matching(expansion: Expansion, pattern: str, option: str = "") -> list[str]:
    """Return the ids of the cells that a pattern matches, or of the only one that begins with it; InputError, naming
    the option, when there is none.
    """
    matched = [cell.id for cell in expansion.cells if _fits_pattern(cell.id, pattern)]
    if not matched and pattern:
        matched = [cell.id for cell in expansion.cells if cell.id.startswith(pattern)]
        if len(matched) > 1:
            first = f"more of the id of one, or a pattern: {', '.join(matched[:3])}"
            raise InputError(Problem(message=f"{option}{pattern}: {len(matched)} cells begin with it", allowed=first))
    if not matched:
        raise InputError(_no_cell(expansion, pattern, option))
    return matched


def _fits_pattern(cell: str, pattern: str) -> bool:
    return fnmatchcase(cell, pattern) or fnmatchcase(cell.rpartition("-")[0], pattern)


def _no_cell(expansion: Expansion, pattern: str, option: str) -> Problem:
    rejected = [cell for cell in expansion.rejected if _fits_pattern(cell.id, pattern)]
    if rejected:
        first = rejected[0].rejections[0]
        return Problem(message=f"{option}{pattern}: a rule rejects {rejected[0].id}: {first.reason}")
    names = [cell.id.rpartition("-")[0] for cell in expansion.cells]
    near = difflib.get_close_matches(pattern, names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else _PLAN
    if expansion.selection:
        hint += f"; {expansion.selection.left_out} cells are left out, `select: full` plans them"
    return Problem(message=f"{option}{pattern}: no such cell", hint=hint)


def parse_expression(text: str) -> Fits:
    """Return whether an id fits the expression, e.g. "tp2 and not (cp2 or sft)".

    InputError for one that cannot be read.
    """
    tokens = _TOKEN.findall(text)
    fits, rest = _either(tokens, text)
    if rest:
        raise _unreadable(text, f"{rest[0]!r} is one word too many")
    return fits


def _either(tokens: list[str], text: str) -> tuple[Fits, list[str]]:
    fits, rest = _both(tokens, text)
    while rest and rest[0] == "or":
        alternative, rest = _both(rest[1:], text)
        fits = _any_of(fits, alternative)
    return fits, rest


def _both(tokens: list[str], text: str) -> tuple[Fits, list[str]]:
    fits, rest = _one(tokens, text)
    while rest and rest[0] == "and":
        condition, rest = _one(rest[1:], text)
        fits = _all_of(fits, condition)
    return fits, rest


def _one(tokens: list[str], text: str) -> tuple[Fits, list[str]]:
    if not tokens or tokens[0] in (")", "and", "or"):
        raise _unreadable(text, f"a text is missing {f'before {tokens[0]!r}' if tokens else 'at the end'}")
    word, *rest = tokens
    if word == "not":
        fits, rest = _one(rest, text)
        return lambda name: not fits(name), rest
    if word == "(":
        fits, rest = _either(rest, text)
        if not rest:
            raise _unreadable(text, "a parenthesis is not closed")
        return fits, rest[1:]
    return lambda name: word in name, rest


def _any_of(left: Fits, right: Fits) -> Fits:
    return lambda name: left(name) or right(name)


def _all_of(left: Fits, right: Fits) -> Fits:
    return lambda name: left(name) and right(name)


def _unreadable(text: str, why: str) -> InputError:
    hint = "e.g. -k 'tp2 and not (cp2 or sft)'"
    return InputError(Problem(key="-k", message=why, found=repr(text), hint=hint))


def failed_cells(matrix: Path, run_parent: Path) -> list[str]:
    """Return the ids of the cells that failed.

    InputError when the matrix has no finished run under the folder, or every cell passed.
    """
    from harness.inputs.matrix_file import read_matrix  # what the other commands with runs do without
    from harness.reporting.render_json import read_report
    from harness.runs.listing import listing

    name = read_matrix(matrix).name
    for run in reversed(listing(run_parent)):
        path = run_parent / run.run_id / "report.json"
        if run.state != "finished" or run.faults or not run.run_id.startswith(f"{name}-"):
            continue
        report = read_report(text_of(path))
        if report.matrix != name:
            continue
        if failed := [cell.id for cell in report.cells if cell.outcome in _NOT_PASSED]:
            return failed
        raise InputError(Problem(key="--failed", message=f"no cell failed in {run.run_id}"))
    message = f"no finished run of {name} under {run_parent}"
    raise InputError(Problem(key="--failed", message=message, hint="run the matrix without --failed first"))


def _started(folder: Path) -> float:
    """Return when a run began: commands that read a run write into its folder. 0 when it has just been removed."""
    for first in ("plan.json", "cells"):
        with suppress(OSError):
            return (folder / first).stat().st_mtime
    return 0.0


def _folders_with(file: str, run_parent: Path) -> list[Path]:
    """Return the folders that have a file of this name, the newest last."""
    files = run_parent.glob(f"*/{file}") if is_folder(run_parent) else ()
    return sorted((path.parent for path in files), key=_started)


def find_run(name: str, run_parent: Path) -> RunDir:
    """Return the run directory that a word names.

    InputError when there is none, it has no plan, or several begin with it.
    """
    planned = _folders_with("plan.json", run_parent)
    unplanned = [folder for folder in _folders_with("cells", run_parent) if folder not in planned]
    if name == "latest" and (runs := sorted([*planned, *unplanned], key=_started)):
        if runs[-1] in unplanned:
            raise InputError(_no_plan(runs[-1]))
        return RunDir(runs[-1].resolve())
    inside = [Path(name).parent] if is_file(Path(name)) else []  # e.g. RUN/report.html
    for candidate in (Path(name), run_parent / name, *inside):
        if is_file(candidate / "plan.json"):
            return RunDir(candidate.resolve())
    prefixed = [path for path in planned if name and path.name.startswith(name)]
    if len(prefixed) == 1:
        return RunDir(prefixed[0].resolve())
    for folder in unplanned:
        named = folder.name.startswith(name) or (is_folder(Path(name)) and folder.samefile(name))
        if name and named and not prefixed:
            raise InputError(_no_plan(folder))
    raise InputError(_no_run(name, run_parent, planned, prefixed))


def _no_plan(folder: Path) -> Problem:
    """Return the problem of a run whose first cell began before the others were named."""
    if launcher := launcher_of(RunDir(folder)):
        return Problem(message=f"the launcher still names the run's cells: {launcher}", file=str(folder))
    again = "remove the folder and start the run again"
    return Problem(message="the launcher ended before it had named all cells of the run", file=str(folder), hint=again)


def _no_run(name: str, run_parent: Path, planned: list[Path], prefixed: list[Path]) -> Problem:
    if prefixed:
        listed = ", ".join(path.name for path in prefixed[-3:])
        return Problem(message=f"{len(prefixed)} runs begin with {name!r}", allowed=f"more of the id of one: {listed}")
    listed = ", ".join(path.name for path in planned[-3:]) or f"none under {run_parent}"
    near = difflib.get_close_matches(name, [path.name for path in planned], n=1)
    hint = f"did you mean {near[0]}?" if near else "`harness list` shows all runs" if planned else None
    return Problem(
        message=f"no run {name!r}", allowed=f"a path, 'latest', or an id or its beginning: {listed}", hint=hint
    )
