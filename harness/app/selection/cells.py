"""`--only` and `-k`: select planned cells."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from harness.app.selection.expression import parse
from harness.core.errors import InputError, Problem
from harness.core.run.run_plan import Expansion

_PLAN = "`harness plan` lists the names"


def select(expansion: Expansion, patterns: Sequence[str], expression: str = "") -> Expansion:
    """Cells whose id, or name without the hash, matches a pattern, with the cells that they are compared with.

    `expression`: only those of them whose id fits it (expression.py). InputError for a pattern, or an expression, that
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
        fits = parse(expression)
        within = chosen if patterns else {cell.id for cell in expansion.cells if cell.role == "cell"}
        chosen = {cell for cell in within if fits(cell)}
        if not chosen:
            raise InputError(Problem(key="-k", message="no cell fits", found=repr(expression), hint=_PLAN))
    chosen |= {cell.base for cell in expansion.cells if cell.id in chosen and cell.base}
    chosen |= {cell.control for cell in expansion.cells if cell.id in chosen and cell.control}
    cells = tuple(cell for cell in expansion.cells if cell.id in chosen)
    return replace(expansion, cells=cells, rejected=(), excluded={}, selection=None)


def matching(expansion: Expansion, pattern: str, option: str = "") -> list[str]:
    """Ids of the cells that a pattern matches, or of the only one that begins with it; InputError, naming the option,
    when there is none."""
    matched = [cell.id for cell in expansion.cells if _matches(cell.id, pattern)]
    if not matched and pattern:
        matched = [cell.id for cell in expansion.cells if cell.id.startswith(pattern)]
        if len(matched) > 1:
            first = f"more of the id of one, or a pattern: {', '.join(matched[:3])}"
            raise InputError(Problem(message=f"{option}{pattern}: {len(matched)} cells begin with it", allowed=first))
    if not matched:
        raise InputError(_no_match(expansion, pattern, option))
    return matched


def _matches(cell: str, pattern: str) -> bool:
    return fnmatchcase(cell, pattern) or fnmatchcase(cell.rpartition("-")[0], pattern)


def _no_match(expansion: Expansion, pattern: str, option: str) -> Problem:
    rejected = [cell for cell in expansion.rejected if _matches(cell.id, pattern)]
    if rejected:
        first = rejected[0].rejections[0]
        return Problem(message=f"{option}{pattern}: a rule rejects {rejected[0].id}: {first.reason}")
    names = [cell.id.rpartition("-")[0] for cell in expansion.cells]
    near = difflib.get_close_matches(pattern, names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else _PLAN
    if expansion.selection:
        hint += f"; {expansion.selection.left_out} cells are left out, `select: full` plans them"
    return Problem(message=f"{option}{pattern}: no such cell", hint=hint)
