"""Lays out the cu_seqlens and max_seqlen that each rank received, stages by tensor-parallel ranks. Pure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.text.counts import noun
from harness.judge.report.model import RankView, ReportCell

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


@dataclass(frozen=True, kw_only=True)
class RankSquare:
    view: RankView
    symbol: str
    word: str
    letter: str  # of the value that this rank received; empty for none
    short: str
    full: str


@dataclass(frozen=True, kw_only=True)
class ReceivedValue:
    """One distinct (cu_seqlens, max_seqlen), and the number of ranks that received it."""

    letter: str
    text: str
    max_seqlen: int | None
    ranks: int
    segments: list[tuple[float, float]]  # (x, width) in percent of the row; empty if malformed or too long


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Stages by tp ranks, for one (dp, cp)."""

    title: str
    columns: list[int]
    rows: list[tuple[str, str, list[RankSquare | None]]]  # stage, its layers, squares


@dataclass(frozen=True, kw_only=True)
class RankPicture:
    planes: list[Plane] = field(default_factory=list)
    values: list[ReceivedValue] = field(default_factory=list)
    left_out: str = ""  # a note on ranks that are not drawn
    squares: int = 0


def rank_picture(cell: ReportCell, budget: int) -> RankPicture:
    """The picture of one cell with at most `budget` squares; planes with bad ranks take precedence."""
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
    planes = [_plane(key, views, values, single=len(groups) == 1) for key, views in drawn]
    return RankPicture(planes=planes, values=list(values.values()), left_out=_left_out(ordered, drawn), squares=used)


def _wrong(views: Sequence[RankView]) -> bool:
    return any(view.state not in ("ok", "unpacked") for view in views)


def _left_out(ordered: Sequence[Any], drawn: Sequence[Any]) -> str:
    kept = {key for key, _ in drawn}
    missing = [views for key, views in ordered if key not in kept]
    if not missing:
        return ""
    ranks, bad = sum(len(views) for views in missing), sum(_wrong(views) for views in missing)
    state = f"{bad} of their (dp, cp) groups have ranks that are not ok" if bad else "all of them are ok"
    return f"{ranks} more ranks are omitted to keep this file small; {state}. report.json has every rank."


def _key(view: RankView) -> tuple[tuple[int, ...] | None, int | None] | None:
    if view.cu_seqlens is None and view.max_seqlen is None:
        return None
    return (tuple(view.cu_seqlens) if view.cu_seqlens is not None else None, view.max_seqlen)


def _values(views: Iterable[RankView]) -> dict[Any, ReceivedValue]:
    counts: dict[Any, int] = {}
    for view in views:
        if (key := _key(view)) is not None:
            counts[key] = counts.get(key, 0) + 1
    values = {}
    for index, (key, ranks) in enumerate(counts.items()):
        letter = chr(ord("A") + index) if index < 26 else f"V{index + 1}"
        values[key] = ReceivedValue(
            letter=letter, text=_full(key[0]), max_seqlen=key[1], ranks=ranks, segments=_segments(key[0])
        )
    return values


def _full(cu_seqlens: tuple[int, ...] | None) -> str:
    if cu_seqlens is None:
        return "no cu_seqlens"
    text = ", ".join(str(value) for value in cu_seqlens[:_MAX_VALUES])
    more = f", … ({len(cu_seqlens) - _MAX_VALUES} more)" if len(cu_seqlens) > _MAX_VALUES else ""
    return f"cu_seqlens [{text}{more}]"


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


def _plane(key: tuple[int, int], views: list[RankView], values: dict[Any, ReceivedValue], *, single: bool) -> Plane:
    columns = sorted({view.place.tp for view in views})
    by_place = {(view.place.pp, view.place.tp): view for view in views}
    rows: list[tuple[str, str, list[RankSquare | None]]] = []
    for stage in sorted({view.place.pp for view in views}):
        found = [by_place.get((stage, tp)) for tp in columns]
        layers = next((view.layers for view in found if view is not None and view.layers), [])
        squares = [_square(view, values) if view is not None else None for view in found]
        rows.append((f"stage {stage}", _layers(layers), squares))
    return Plane(title="" if single else f"dp {key[0]}, cp {key[1]}", columns=columns, rows=rows)


def _square(view: RankView, values: dict[Any, ReceivedValue]) -> RankSquare:
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
    """Layer numbers as ranges: [1, 2, 5, 6] as "layers 1-2, 5-6"."""
    if not layers:
        return ""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{noun(len(layers), 'layer')} {text}"
