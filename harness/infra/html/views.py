"""What the HTML report draws besides text: the grid of outcomes and the picture of which rank saw which cu_seqlens.

Pure functions from the report to small values; the templates only lay them out.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.cell.axes import LAYOUT, labelled
from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.stack import DEFAULT
from harness.judge.report.model import RankView, Report, ReportCell, ReportRejected

# outcome -> (symbol, word); both are shown, so that colour alone never carries the meaning
OUTCOME_MARKS = {
    Outcome.PASS: ("✓", "pass"),
    Outcome.FAIL: ("✕", "fail"),
    Outcome.XFAIL: ("✕", "known failure"),
    Outcome.XPASS: ("✓", "unexpected pass"),
    Outcome.REJECTED: ("–", "rejected"),  # noqa: RUF001 - a dash, on purpose
    Outcome.ERROR: ("!", "error"),
    Outcome.FLAKY: ("↻", "flaky"),
}
# state of a rank -> (symbol, words)
STATE_MARKS = {
    "ok": ("✓", "ok"),
    "missing": ("∅", "missing"),
    "differs": ("≠", "differs"),
    "unpacked": ("–", "unpacked"),  # noqa: RUF001
    "no-record": ("?", "no record"),
}
_MAX_STRIP = 64  # segments drawn for one cu_seqlens
_MAX_VALUES = 400  # numbers of one cu_seqlens written out


def anchor(cell_id: str) -> str:
    """Fragment name of a cell's detail on the page."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", cell_id)
    return f"cell-{name}" if len(name) < 200 else f"cell-{hashlib.sha256(name.encode()).hexdigest()}"


def is_control(cell: ReportCell) -> bool:
    """Whether other cells are compared with this one: only it has no reference of its own."""
    return cell.role == "reference" or cell.reference is None


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One cell in a square of the grid."""

    outcome: Outcome
    symbol: str
    word: str
    note: str  # second line: the failing lanes, or "control"
    href: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows are layouts, columns data paths; of one data path on several stacks, rows are the longer of the two."""

    title: str  # the data path; empty when the columns name it
    corner: str  # what the rows are
    columns: list[str]
    rows: list[tuple[str, list[list[Chip]]]]  # a square holds as many chips as cells share the place


def outcome_grids(report: Report) -> list[Grid]:
    """Every cell and every rejected cell in one square each; a grid per data path when the stacks differ."""
    items: list[tuple[dict[str, Any], Chip]] = [(_axes_of(cell), _chip(cell)) for cell in report.cells]
    items += [(_axes_of(rejected), _rejected_chip(rejected)) for rejected in report.rejected]
    usual = _usual([axes for axes, _ in items])
    if "stack" not in usual:
        return [_grid("", items, usual, "packing")]
    stacks = list(dict.fromkeys(_stack_of(axes) for axes, _ in items))
    items.sort(key=lambda item: stacks.index(_stack_of(item[0])))
    paths = dict.fromkeys(_path_of(axes) for axes, _ in items)
    return [_grid(path, [item for item in items if _path_of(item[0]) == path], usual, "stack") for path in paths]


def _grid(title: str, items: list[tuple[dict[str, Any], Chip]], usual: Mapping[str, str], across: str) -> Grid:
    rows: dict[tuple[Any, ...], str] = {}
    columns: dict[str, None] = {}
    squares: dict[tuple[str, str], list[Chip]] = {}
    for axes, chip in items:
        row = _row_name(axes, usual)
        column = _path_of(axes) if across == "packing" else _stack_of(axes)
        rows[_row_order(axes, row)] = row
        columns[column] = None
        squares.setdefault((row, column), []).append(chip)
    down, over, corner = [rows[key] for key in sorted(rows)], list(columns), "layout"
    if title and len(over) > len(down):
        down, over, corner = over, down, across
        squares = {(column, row): chips for (row, column), chips in squares.items()}
    lines = [(name, [squares.get((name, column), []) for column in over]) for name in down]
    return Grid(title=title, corner=corner, columns=over, rows=lines)


def _path_of(axes: dict[str, Any]) -> str:
    return str(axes.get("packing", "cells"))


def _stack_of(axes: dict[str, Any]) -> str:
    return str(axes.get("stack", DEFAULT))


def _axes_of(item: ReportCell | ReportRejected) -> dict[str, Any]:
    layout = {name: getattr(item.layout, name) for name in LAYOUT} if isinstance(item, ReportCell) else {}
    return {**item.axes, **layout}


def _usual(all_axes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The most frequent value of each axis that varies; the first of equally frequent ones."""
    seen: dict[str, Counter[str]] = {}
    for axes in all_axes:
        for name, value in axes.items():
            seen.setdefault(name, Counter())[str(value)] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in seen.items() if len(counts) > 1}


def _row_name(axes: dict[str, Any], usual: Mapping[str, str]) -> str:
    """As in cell ids: tp2-pp4-cp1, the sizes above one, then other axes where they are not as usual in this matrix."""
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
    note = ", ".join(failing) or ("control" if is_control(cell) else "")
    title = cell.id + (f": {cell.findings[0].message}" if cell.findings else f": {cell.reason}" if cell.reason else "")
    href = f"#{anchor(cell.id)}"
    return Chip(outcome=cell.outcome, symbol=symbol, word=word, note=note, href=href, title=title[:300])


def _rejected_chip(rejected: ReportRejected) -> Chip:
    symbol, word = OUTCOME_MARKS[Outcome.REJECTED]
    return Chip(
        outcome=Outcome.REJECTED,
        symbol=symbol,
        word=word,
        note=rejected.rule,
        href=f"#{anchor(rejected.id)}",
        title=f"{rejected.id}: {rejected.reason}"[:300],
    )


@dataclass(frozen=True, kw_only=True)
class RankSquare:
    view: RankView
    symbol: str
    word: str
    letter: str  # of the value this rank saw; "" when it saw none
    short: str
    full: str


@dataclass(frozen=True, kw_only=True)
class SeenValue:
    """One distinct (cu_seqlens, max_seqlen), and how many ranks saw it."""

    letter: str
    text: str
    max_seqlen: int | None
    ranks: int
    segments: list[tuple[float, float]]  # (x, width) in per cent of the stream; empty when it cannot be drawn


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Stage by TP rank, for one (dp, cp)."""

    title: str
    columns: list[int]
    rows: list[tuple[str, str, list[RankSquare | None]]]  # stage, its layers, squares


@dataclass(frozen=True, kw_only=True)
class RankPicture:
    planes: list[Plane] = field(default_factory=list)
    values: list[SeenValue] = field(default_factory=list)
    left_out: str = ""  # what is not drawn, said in words
    squares: int = 0


def rank_picture(cell: ReportCell, budget: int) -> RankPicture:
    """The picture of one cell with at most about `budget` squares; planes where something is wrong come first."""
    groups: dict[tuple[int, int], list[RankView]] = defaultdict(list)
    for view in cell.ranks:
        groups[view.place.dp, view.place.cp].append(view)
    ordered = sorted(groups.items(), key=lambda item: (not _wrong(item[1]), item[0]))
    drawn: list[tuple[tuple[int, int], list[RankView]]] = []
    used = 0
    for key, views in ordered:
        if used + len(views) <= budget:
            drawn.append((key, views))
            used += len(views)
    drawn.sort(key=lambda item: item[0])
    values = _values(view for _, views in drawn for view in views)
    planes = [_plane(key, views, values, alone=len(groups) == 1) for key, views in drawn]
    return RankPicture(planes=planes, values=list(values.values()), left_out=_left_out(ordered, drawn), squares=used)


def _wrong(views: Sequence[RankView]) -> bool:
    return any(view.state not in ("ok", "unpacked") for view in views)


def _left_out(ordered: Sequence[Any], drawn: Sequence[Any]) -> str:
    kept = {key for key, _ in drawn}
    missing = [views for key, views in ordered if key not in kept]
    if not missing:
        return ""
    ranks, bad = sum(len(views) for views in missing), sum(_wrong(views) for views in missing)
    state = f"{bad} of these groups hold ranks that are not ok" if bad else "all of them are ok"
    return f"{ranks} more ranks are not drawn to keep this file small; {state}. report.json has every rank."


def _key(view: RankView) -> tuple[tuple[int, ...] | None, int | None] | None:
    if view.cu_seqlens is None and view.max_seqlen is None:
        return None
    return (tuple(view.cu_seqlens) if view.cu_seqlens is not None else None, view.max_seqlen)


def _values(views: Iterable[RankView]) -> dict[Any, SeenValue]:
    counts: dict[Any, int] = {}
    for view in views:
        if (key := _key(view)) is not None:
            counts[key] = counts.get(key, 0) + 1
    values = {}
    for index, (key, ranks) in enumerate(counts.items()):
        letter = chr(ord("A") + index) if index < 26 else f"V{index + 1}"
        values[key] = SeenValue(
            letter=letter, text=_full(key[0]), max_seqlen=key[1], ranks=ranks, segments=_segments(key[0])
        )
    return values


def _full(cu_seqlens: tuple[int, ...] | None) -> str:
    if cu_seqlens is None:
        return "no cu_seqlens"
    text = ", ".join(str(value) for value in cu_seqlens[:_MAX_VALUES])
    more = f", … ({len(cu_seqlens) - _MAX_VALUES} more)" if len(cu_seqlens) > _MAX_VALUES else ""
    return f"[{text}{more}]"


def _short(cu_seqlens: list[int] | None) -> str:
    if cu_seqlens is None:
        return "no cu_seqlens"
    if len(cu_seqlens) <= 4:
        return "[" + ", ".join(str(value) for value in cu_seqlens) + "]"
    return f"[{cu_seqlens[0]}, {cu_seqlens[1]}, … {cu_seqlens[-1]}]"


def _segments(cu_seqlens: tuple[int, ...] | None) -> list[tuple[float, float]]:
    if not cu_seqlens or len(cu_seqlens) > _MAX_STRIP + 1 or cu_seqlens[-1] <= 0:
        return []
    if cu_seqlens[0] != 0 or any(b < a for a, b in itertools.pairwise(cu_seqlens)):
        return []
    total = cu_seqlens[-1]
    return [(round(100 * a / total, 2), round(100 * (b - a) / total, 2)) for a, b in itertools.pairwise(cu_seqlens)]


def _plane(key: tuple[int, int], views: list[RankView], values: dict[Any, SeenValue], *, alone: bool) -> Plane:
    columns = sorted({view.place.tp for view in views})
    by_place = {(view.place.pp, view.place.tp): view for view in views}
    rows: list[tuple[str, str, list[RankSquare | None]]] = []
    for stage in sorted({view.place.pp for view in views}):
        found = [by_place.get((stage, tp)) for tp in columns]
        layers = next((view.layers for view in found if view is not None and view.layers), [])
        squares = [_square(view, values) if view is not None else None for view in found]
        rows.append((f"stage {stage}", _layers(layers), squares))
    return Plane(title="" if alone else f"dp {key[0]}, cp {key[1]}", columns=columns, rows=rows)


def _square(view: RankView, values: dict[Any, SeenValue]) -> RankSquare:
    symbol, word = STATE_MARKS.get(view.state, ("?", view.state))
    seen = values.get(_key(view))
    return RankSquare(
        view=view,
        symbol=symbol,
        word=word,
        letter=seen.letter if seen else "",
        short=_short(view.cu_seqlens),
        full=seen.text if seen else "",
    )


def _layers(layers: Sequence[int]) -> str:
    """Runs of layer numbers: [1, 2, 5, 6] as "layers 1-2, 5-6"."""
    if not layers:
        return ""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {text}"
