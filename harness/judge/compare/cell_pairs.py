"""Pairs the cells of two runs, and classifies how each changed.

A cell is the same in both runs if its id is (layout, data path, model, documents, training, stack). The remaining
cells are matched by name without the hash, then by all axes but the stack, if exactly one cell on each side fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.core.outcomes import ACCEPTED, Outcome
from harness.core.stack import DEFAULT
from harness.judge.report.model import ChangeKind, Report, ReportCell, ReportRejected

Cell = ReportCell | ReportRejected


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A cell in two runs; None for a run that does not have it."""

    before: Cell | None
    after: Cell | None
    matched: str = ""  # how, if not by id


def pairs(before: Report, after: Report) -> list[Pair]:
    """Every cell of either run once, in the order of the later run; cells of the earlier run alone come last."""
    ways: tuple[tuple[str, Callable[[Cell], Any]], ...] = (
        ("", lambda cell: cell.id),
        ("by name: the configuration differs", lambda cell: cell.id.rpartition("-")[0]),
        ("by name: a fault was injected", _sound_name),
        ("by axes: the stack has another name", lambda cell: _without_stack(cell.axes)),
    )
    old: list[Cell] = [*before.cells, *before.rejected]
    later: list[Cell] = [*after.cells, *after.rejected]
    found: dict[str, Pair] = {}  # by the id in the later run
    new = later
    for matched, key in ways:
        earlier, ours = _unique(old, key), _unique(new, key)
        for name in earlier.keys() & ours.keys():
            found[ours[name].id] = Pair(before=earlier[name], after=ours[name], matched=matched)
        taken = {pair.before.id for pair in found.values() if pair.before}
        old = [cell for cell in old if cell.id not in taken]
        new = [cell for cell in new if cell.id not in found]
    return [
        *(found.get(cell.id, Pair(before=None, after=cell)) for cell in later),
        *(Pair(before=cell, after=None) for cell in old),
    ]


def _unique(cells: Iterable[Cell], key: Callable[[Cell], Any]) -> dict[Any, Cell]:
    """Cells by key, without those that share their key."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return {name: members[0] for name, members in groups.items() if len(members) == 1}


def _sound_name(cell: Cell) -> str:
    """The name without an injected fault."""
    name = cell.id.rpartition("-")[0]
    return name.removesuffix(f"-{cell.fault}") if isinstance(cell, ReportCell) and cell.fault else name


def _without_stack(axes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in axes.items() if name != "stack"))


def stack_of(cell: Cell) -> str:
    return str(cell.axes.get("stack", DEFAULT))


def change(before: Outcome | None, after: Outcome | None) -> ChangeKind:
    """From the outcomes of a cell in the earlier and the later run; None: not in that run."""
    if before is None or after is None:
        return ChangeKind.NEW if before is None else ChangeKind.GONE
    if after is Outcome.FAIL:
        if before is Outcome.FAIL:
            return ChangeKind.STILL_FAILING
        return ChangeKind.NEWLY_FAILING if before in ACCEPTED else ChangeKind.UNJUDGED
    if after in (Outcome.REJECTED, Outcome.NOT_RUN):
        return ChangeKind.UNCHANGED if before is after else ChangeKind.NO_LONGER_RUN
    if after is Outcome.XFAIL:
        return ChangeKind.UNCHANGED if before is Outcome.XFAIL else ChangeKind.KNOWN_FAILURE
    named = {Outcome.ERROR: ChangeKind.UNDECIDED, Outcome.FLAKY: ChangeKind.FLAKY}
    fixed = ChangeKind.FIXED if before in (Outcome.FAIL, Outcome.XFAIL) else ChangeKind.UNCHANGED
    return named.get(after) or fixed


def outcome_of(cell: Cell | None) -> Outcome | None:
    if cell is None:
        return None
    return cell.outcome if isinstance(cell, ReportCell) else Outcome.REJECTED
