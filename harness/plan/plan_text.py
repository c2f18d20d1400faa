"""What `harness plan` prints, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.plan.allocations import plan_allocations
from harness.plan.cost import Cost, estimate
from harness.words.jsonable import dumps
from harness.words.run_plan import Expansion, PlannedCell, RejectedCell

MAX_ROWS = 50
_ALWAYS = ("tp", "pp", "cp", "packing")


def plan_text(expansion: Expansion, *, all_rows: bool = False, cores: int = 1) -> str:
    """Cells, rejected cells with rule and arithmetic, excluded combinations, totals and cost.

    At most 50 rows of each kind unless `all_rows`; what is left out is counted. `cores`: of the machine that will run.
    """
    cost = estimate(expansion, cores=cores)
    limit = None if all_rows else MAX_ROWS
    lines = [f"{_count(cost.cells, 'cell')} to run, {cost.rejected} rejected, {cost.excluded} excluded"]
    lines += ["", "Cells", *_indent(_cell_table(expansion.cells[:limit]))]
    lines += _more(len(expansion.cells), limit)
    if expansion.rejected:
        lines += ["", "Rejected by a rule", *_rejected_lines(expansion.rejected[:limit])]
        lines += _more(len(expansion.rejected), limit)
    if expansion.excluded:
        lines += ["", "Excluded by a constraint"]
        lines += [f"  {_count(count, 'combination')} by {text}" for text, count in expansion.excluded.items()]
    lines += ["", *_cost_lines(cost)]
    return "\n".join(lines)


def plan_json(expansion: Expansion, *, cores: int = 1) -> str:
    """The same as JSON text, never shortened."""
    values = {
        "cells": [_cell_json(cell) for cell in expansion.cells],
        "rejected": [
            {
                "id": cell.id,
                "axes": cell.axes,
                "line": cell.line,
                "rule": cell.rejections[0].rule,
                "reason": cell.rejections[0].reason,
                "rejections": cell.rejections,
            }
            for cell in expansion.rejected
        ],
        "excluded": expansion.excluded,
        "allocations": plan_allocations(expansion),
        "cost": estimate(expansion, cores=cores),
    }
    return dumps(values, indent=2)


def _cell_json(cell: PlannedCell) -> dict[str, Any]:
    return {
        "id": cell.id,
        "axes": cell.axes,
        "ranks": cell.config.layout.world_size,
        "group": cell.group,
        "role": cell.role,
        "reference": cell.reference,
        "xfail": cell.xfail,
        "line": cell.line,
    }


def _cell_table(cells: Sequence[PlannedCell]) -> list[str]:
    """Columns: id, the axes that vary, ranks, a note."""
    shown = [
        name
        for name in (cells[0].axes if cells else ())
        if name in _ALWAYS or len({cell.axes.get(name) for cell in cells}) > 1
    ]
    rows = [["id", *shown, "ranks", ""]]
    for cell in cells:
        values = [_value(cell.axes.get(name)) for name in shown]
        rows.append([cell.id, *values, str(cell.config.layout.world_size), _note(cell)])
    return _aligned(rows)


def _note(cell: PlannedCell) -> str:
    notes = []
    if cell.reference is None:
        notes.append("reference" if cell.role == "cell" else "reference, added")
    if cell.xfail:
        until = f" until {cell.xfail.expires}" if cell.xfail.expires else ""
        notes.append(f"known failure{until}: {cell.xfail.reason}")
    return "; ".join(notes)


def _rejected_lines(rejected: Sequence[RejectedCell]) -> list[str]:
    lines = []
    for cell in rejected:
        lines.append(f"  {cell.id}" + (f"  (line {cell.line})" if cell.line else ""))
        for rejection in cell.rejections:
            lines += [f"    {rejection.rule}: {rejection.reason}", f"      source: {rejection.source}"]
    return lines


def _cost_lines(cost: Cost) -> list[str]:
    return [
        f"Total: {_count(cost.cells, 'cell')}, {_count(cost.ranks, 'rank process', 'rank processes')} "
        f"(biggest cell {cost.largest_world}), {_count(cost.rank_steps, 'rank-step')}",
        f"Estimated time: about {_duration(cost.seconds)} (a rough estimate from {cost.basis})",
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _more(total: int, limit: int | None) -> list[str]:
    return [f"  ... and {total - limit} more (--all shows them)"] if limit is not None and total > limit else []


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
