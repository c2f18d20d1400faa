"""Lays out the grid of outcomes, layouts by data paths, one mark per cell or per outcome. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cell.axes import LAYOUT, labelled
from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.stack import DEFAULT
from harness.infra.html.marks import OUTCOME_MARKS, anchor, is_control
from harness.judge.report.model import Report, ReportCell, ReportRejected


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One cell in a square of the grid."""

    outcome: Outcome
    cell: str  # its id
    control: bool = False
    symbol: str
    word: str
    note: str  # second line: the failing lanes, or "control", "in part"
    href: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Layouts by data paths; for one data path on several stacks, layouts by stacks, the longer side as rows."""

    title: str  # the data path; empty when columns are data paths
    corner: str  # header of the row names
    columns: list[str]
    rows: list[tuple[str, list[list[Chip]]]]  # one square per column, with a chip per cell


def outcome_grids(report: Report) -> list[Grid]:
    """One chip for every cell and rejected cell; a grid per data path if there are several stacks."""
    items = _items(report)
    usual = _usual([axes for axes, _ in items])
    if "stack" not in usual:
        return [_grid("", items, usual, "packing")]
    stacks = list(dict.fromkeys(_stack_of(axes) for axes, _ in items))
    items.sort(key=lambda item: stacks.index(_stack_of(item[0])))
    paths = dict.fromkeys(_path_of(axes) for axes, _ in items)
    return [_grid(path, [item for item in items if _path_of(item[0]) == path], usual, "stack") for path in paths]


def grid_of_counts(report: Report, href: Callable[[str], str]) -> Grid:
    """Of many cells: in each square a chip for every outcome, with the count and a link to the first such cell."""
    grid = _grid("", _items(report), {}, "packing")
    return replace(grid, rows=[(row, [_counted(chips, href) for chips in squares]) for row, squares in grid.rows])


def _counted(chips: Sequence[Chip], href: Callable[[str], str]) -> list[Chip]:
    firsts: dict[Outcome, Chip] = {}
    for chip in chips:
        firsts.setdefault(chip.outcome, chip)
    counts = Counter(chip.outcome for chip in chips)
    return [
        replace(first, word=f"{counts[outcome]:,} {first.word}", note="", href=href(first.cell))
        for outcome, first in firsts.items()
    ]


def _items(report: Report) -> list[tuple[dict[str, Any], Chip]]:
    """The axes and the mark of every cell and rejected cell."""
    items = [(_axes_of(cell), _chip(cell)) for cell in report.cells]
    return items + [(_axes_of(rejected), _rejected_chip(rejected)) for rejected in report.rejected]


def _grid(title: str, items: list[tuple[dict[str, Any], Chip]], usual: Mapping[str, str], across: str) -> Grid:
    rows: dict[tuple[Any, ...], str] = {}
    columns: dict[str, None] = {}
    squares: dict[tuple[str, str], list[Chip]] = {}
    controls = _only_controls(items, across)
    for axes, chip in items:
        row = _row_name(axes, usual)
        column = _path_of(axes) if across == "packing" else _stack_of(axes)
        rows[_row_order(axes, row)] = row
        columns[column] = None
        squares.setdefault((row, column), []).append(chip)
    down, over, corner = [rows[key] for key in sorted(rows)], sorted(columns, key=controls.__contains__), "layout"
    if title and len(over) > len(down):
        down, over, corner = over, down, across
        squares = {(column, row): chips for (row, column), chips in squares.items()}
    lines = [(name, [squares.get((name, column), []) for column in over]) for name in down]
    return Grid(title=title, corner=corner, columns=over, rows=lines)


def _only_controls(items: list[tuple[dict[str, Any], Chip]], across: str) -> set[str]:
    """Columns that hold nothing but controls: they come last, so that a narrow window shows the code under test."""
    name = _path_of if across == "packing" else _stack_of
    return {name(axes) for axes, _ in items} - {name(axes) for axes, chip in items if not chip.control}


def _path_of(axes: dict[str, Any]) -> str:
    return str(axes.get("packing", "cells"))


def _stack_of(axes: dict[str, Any]) -> str:
    return str(axes.get("stack", DEFAULT))


def _axes_of(item: ReportCell | ReportRejected) -> dict[str, Any]:
    layout = {name: getattr(item.layout, name) for name in LAYOUT} if isinstance(item, ReportCell) else {}
    return {**item.axes, **layout}


def _usual(all_axes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The most frequent value of each axis that varies; on a tie the first."""
    seen: dict[str, Counter[str]] = {}
    for axes in all_axes:
        for name, value in axes.items():
            seen.setdefault(name, Counter())[str(value)] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in seen.items() if len(counts) > 1}


def _row_name(axes: dict[str, Any], usual: Mapping[str, str]) -> str:
    """As in cell ids: tp2-pp4-cp1, other sizes above one, then axes with a value other than the most frequent."""
    parts = [f"{name}{axes.get(name, 1)}" for name in ("tp", "pp", "cp")]
    parts += [f"{name}{axes[name]}" for name in ("dp", "ep", "vpp") if axes.get(name, 1) not in (1, None)]
    if axes.get("tp", 1) != 1 and axes.get("sp") is False:
        parts.append("nosp")
    if axes.get("micro_batch_size", 1) != 1:
        parts.append(f"mbs{axes['micro_batch_size']}")
    known = {*LAYOUT, "micro_batch_size", "packing", "stack"}
    rest = [name for name in axes if name in usual and name not in known and str(axes[name]) != usual[name]]
    return "-".join(parts + [labelled(name, axes[name]) for name in rest])


def _row_order(axes: dict[str, Any], name: str) -> tuple[Any, ...]:
    sizes = [axes.get(size, 1) for size in ("tp", "pp", "cp", "dp", "ep", "vpp", "micro_batch_size")]
    return (*(size if isinstance(size, int) else 0 for size in sizes), name)


def _chip(cell: ReportCell) -> Chip:
    symbol, word = OUTCOME_MARKS[cell.outcome]
    failing = [lane.value for lane, verdict in cell.lanes.items() if verdict is LaneVerdict.FAIL]
    notes = ["control"] * is_control(cell) + ["in part"] * bool(cell.partial)
    note = ", ".join(failing or notes)
    title = cell.id + (f": {cell.findings[0].message}" if cell.findings else f": {cell.reason}" if cell.reason else "")
    href = f"#{anchor(cell.id)}"
    return Chip(
        outcome=cell.outcome,
        cell=cell.id,
        control=is_control(cell),
        symbol=symbol,
        word=word,
        note=note,
        href=href,
        title=title[:300],
    )


def _rejected_chip(rejected: ReportRejected) -> Chip:
    symbol, word = OUTCOME_MARKS[Outcome.REJECTED]
    return Chip(
        outcome=Outcome.REJECTED,
        cell=rejected.id,
        symbol=symbol,
        word=word,
        note=rejected.rule,
        href=f"#{anchor(rejected.id)}",
        title=f"{rejected.id}: {rejected.reason}"[:300],
    )
