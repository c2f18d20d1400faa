"""`--only`: which planned cells to run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from harness.words.errors import InputError, Problem
from harness.words.run_plan import Expansion


def select(expansion: Expansion, patterns: Sequence[str]) -> Expansion:
    """Cells whose id, or name without the hash, matches a pattern, with the reference cells they need.

    InputError for a pattern that matches nothing. No patterns: everything.
    """
    if not patterns:
        return expansion
    problems = []
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {cell.id for cell in expansion.cells if _matches(cell.id, pattern)}
        if not matched:
            problems.append(_no_match(expansion, pattern))
        chosen |= matched
    if problems:
        raise InputError(problems)
    chosen |= {cell.reference for cell in expansion.cells if cell.id in chosen and cell.reference}
    cells = tuple(cell for cell in expansion.cells if cell.id in chosen)
    return replace(expansion, cells=cells, rejected=(), excluded={})


def _matches(cell: str, pattern: str) -> bool:
    return fnmatchcase(cell, pattern) or fnmatchcase(cell.rpartition("-")[0], pattern)


def _no_match(expansion: Expansion, pattern: str) -> Problem:
    rejected = [cell for cell in expansion.rejected if _matches(cell.id, pattern)]
    if rejected:
        first = rejected[0].rejections[0]
        return Problem(message=f"--only {pattern}: a rule rejects {rejected[0].id}: {first.reason}")
    names = [cell.id.rpartition("-")[0] for cell in expansion.cells]
    near = difflib.get_close_matches(pattern, names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "`harness plan` lists the names"
    return Problem(message=f"--only {pattern}: no such cell", hint=hint)
