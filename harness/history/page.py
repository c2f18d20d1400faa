"""The pages of many runs: history.html and index.html of a reports folder.

The history has failing cells and since when, a calendar of outcomes, trends of times, rates and drift. The index has
the folder's matrices with since when they fail, and its runs. Trends over days are inline SVG with few bytes per point,
each with a tooltip; not drawn with matplotlib, since a page has dozens of them, at 50 ms per figure. Colours are the
CSS variables of the reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.core.outcomes import Outcome
from harness.core.text import clip, counted, html_text
from harness.history.database import CellHistory, History
from harness.history.queries import Filters, calendar, listing, totals, trail
from harness.history.trends import Day, Point, calendar_rows, days_between, points
from harness.reporting.html import page
from harness.reporting.html.page import OUTCOME_MARKS, Link, anchor, clipped, link_from, seconds
from harness.runs.listing import IndexedRun, matrices

MAX_LISTED = 300  # cells in the table
MAX_IN_CALENDAR = 80  # cells in the calendar
MAX_DAYS = 120  # newest days in the calendar
MAX_TRENDS = 12  # cells with trends
_POINTS = 120  # newest points of a trend
_ROWS = 15  # rows of the table below it
_STAMP = "%Y-%m-%dT%H:%M:%SZ"
_FILTERS = ("matrix", "cell", "stack", "outcome")
_MAX_RUNS = 500  # rows of the index
# verdict or state -> (CSS class of the outcome whose colour it has, symbol, word)
_RUN_LABELS = {
    "pass": ("o-PASS", "✓", "pass"),
    "fail": ("o-FAIL", "✕", "fail"),
    "error": ("o-ERROR", "!", "undecided"),
    "running": ("o-XPASS", "…", "running"),
    "interrupted": ("o-ERROR", "!", "interrupted"),
    "unreadable": ("o-ERROR", "?", "unreadable"),
}
_LABEL = 64.0  # width of a version's label
_DIGITS = 12  # characters of its name


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One drawn trend of a cell."""

    title: str
    note: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A cell's trends, and the table below them."""

    cell: Mapping[str, Any]
    figures: list[Figure]
    rows: list[Point]  # the newest first
    more: int  # points that are not in the table


def render_history(history: History, wanted: Filters, *, days: int, now: str, folder: Path | None = None) -> str:
    """Return the history page of the `days` days before `now` (ISO, UTC). Deterministic.

    Worst cells come first, up to the limits above; `wanted` filters cells. `folder`: that of the
    page, from which it links the reports of runs.
    """
    until = wanted.until or now
    since = wanted.since or _before(until, days)
    cells = list(history.rows(listing("cells", replace(wanted, since=since, until=until, limit=None))))
    shown = [cell["series"] for cell in cells[:MAX_IN_CALENDAR]]
    (total,) = history.rows(totals(since, until))
    first_day = max(since, total["first"] or since, _before(until, MAX_DAYS - 1))
    dates = days_between(first_day[:10], until[:10])
    past = _past(history, cells)
    page.environment().filters.update(mark=_mark, day=_day_title, figure=_figure_text)
    page.environment().globals.update(report_of=lambda run: _report_of(history, folder, run))
    values = {
        "cells": cells[:MAX_LISTED],
        "hidden": len(cells) - len(cells[:MAX_LISTED]),
        "calendar_hidden": len(cells) - len(shown),
        "trends_hidden": len(cells) - min(len(cells), MAX_TRENDS),
        "total": total,
        "since": since,
        "until": until,
        "dates": dates,
        "calendar": calendar_rows(history.rows(calendar(shown, since)), dates),
        "failing": [
            (cell, past[cell["series"]]) for cell in cells if cell["last"] == "FAIL" and cell["series"] in past
        ],
        "counts": {outcome: sum(cell["last"] == outcome.value for cell in cells) for outcome in Outcome},
        "trends": [_trend(history, cell, since) for cell in cells[:MAX_TRENDS]],
        "narrowed": _narrowed(wanted),
        "index": link_from(folder, "all runs", folder / "index.html") if folder else None,
        "outcome": Outcome,
    }
    return page.render("history.html.j2", values, "history.css")


def _report_of(history: History, folder: Path | None, run: str) -> Link | None:
    """Return the report of a run: beside the page, else where the run was recorded."""
    if folder is None:
        return None
    recorded = history.directory(run)
    beside = link_from(folder, run, folder / run / "report.html") if Path(run).name == run else None
    if beside or recorded is None:
        return beside
    return link_from(folder, run, recorded / "report.html")


def _before(moment: str, days: int) -> str:
    return (datetime.strptime(moment, _STAMP) - timedelta(days=days)).strftime(_STAMP)


def _past(history: History, cells: Sequence[Mapping[str, Any]]) -> dict[int, CellHistory]:
    """Return series -> its history, for cells that fail now."""
    failing = {(cell["matrix"], cell["device"]) for cell in cells if cell["last"] == "FAIL"}
    known = {key: history.cell_histories(*key, "9999") for key in failing}
    pasts = {cell["series"]: known.get((cell["matrix"], cell["device"]), {}).get(cell["cell"]) for cell in cells}
    return {series: past for series, past in pasts.items() if past is not None}


def _narrowed(wanted: Filters) -> str:
    filters = [f"{name} {value}" for name, value in vars(wanted).items() if value and name in _FILTERS]
    return ", ".join(filters)


def _trend(history: History, cell: Mapping[str, Any], since: str) -> Trend:
    run_points = points(history.rows(trail(cell["series"], since, _POINTS)))
    newest = list(reversed(run_points))
    return Trend(
        cell=cell, figures=list(_figures(cell["cell"], run_points)), rows=newest[:_ROWS], more=len(newest[_ROWS:])
    )


def _figures(cell: str, run_points: Sequence[Point]) -> Iterator[Figure]:
    for name, title, unit, factor in (
        ("step_p50_s", "Step time", "ms, median of a run's steps", 1000.0),
        ("tokens_per_s", "Tokens/s", "real tokens per second and rank", 1.0),
        ("loss_drift", "Loss drift", "largest relative difference from the control over a run's steps", 1.0),
    ):
        spots = _trend_points(run_points, name, factor)
        if any(math.isfinite(spot.value) for spot in spots):
            alt = f"{title} of {clip(cell, 300)} in {counted(len(spots), 'run')}, {unit}"
            yield Figure(title=title, note=unit, svg=trend_svg(spots, alt=alt, log=name == "loss_drift"))


def _trend_points(run_points: Sequence[Point], name: str, factor: float) -> list[TrendPoint]:
    """Return the points that have a metric; a version is marked at its first point."""
    trend: list[TrendPoint] = []
    version = run_points[0].version if run_points else ""
    for point in run_points:
        value: float | None = getattr(point, name)
        if value is None:
            continue
        details = ", ".join(clipped(text, 200) for text in (point.version, point.outcome, point.run_id))
        title = f"{point.started}: {value * factor:.4g}, {details}"
        bad, mark = point.outcome == "FAIL", _short(point.version) if point.version != version else ""
        trend.append(TrendPoint(started=point.started, value=value * factor, title=title, bad=bad, mark=mark))
        version = point.version
    return trend


def _short(version: str) -> str:
    """Return the identifying part of "megatron-lm main = 0123456789ab": its last word."""
    return version.split(",")[0].split()[-1] if version.split() else "?"


def _mark(outcome: str) -> str:
    return OUTCOME_MARKS[Outcome(outcome)][0]


def _day_title(day: Day) -> str:
    if not day.outcome:
        return f"{day.day}: no run"
    counts = ", ".join(f"{OUTCOME_MARKS[Outcome(name)][1]} x {times}" for name, times in day.times.items())
    return f"{day.day}: {counts}"


def _figure_text(value: float | None, factor: float = 1.0) -> str:
    return "–" if value is None else f"{value * factor:.4g}"  # noqa: RUF001


def render_index(runs: Sequence[IndexedRun], *, history: bool) -> str:
    """Return the index as one HTML document with relative links. Deterministic.

    `runs`: the newest first; `history`: whether there is a history.html beside the page.
    """
    groups = matrices(runs)
    values = {
        "runs": runs[:_MAX_RUNS],
        "left_out": len(runs) - len(runs[:_MAX_RUNS]),
        "matrices": groups,
        "red": [group for group in groups if group.red_since],
        "unfinished": [run for run in runs if run.state != "finished"],
        "history": history,
        "labels": _RUN_LABELS,
        "anchor": anchor,
        "path": lambda run, name: f"{quote(run.run_id, safe='')}/{name}",
        "duration": seconds,
    }
    return page.render("index.html.j2", values)


_WIDTH, _HEIGHT = 380.0, 170.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 20.0, 24.0


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """One point of a trend."""

    started: str  # ISO, UTC
    value: float
    title: str  # tooltip
    bad: bool = False  # drawn as a cross
    mark: str = ""  # name of a version that starts here


def trend_svg(spots: Sequence[TrendPoint], *, alt: str, log: bool = False) -> str:
    """Draw values over time, connected by a line. `log`: on a logarithmic axis, with zeros at its lower end.

    Values that are not finite are crosses at the top edge. At least one value must be finite.
    """
    times = [datetime.fromisoformat(spot.started.replace("Z", "+00:00")).timestamp() for spot in spots]
    axis = _log_axis(spots) if log else _linear_axis(spots)
    span = (max(times) - min(times)) or 1.0
    xs = [_LEFT + (time - min(times)) / span * (_WIDTH - _LEFT - _RIGHT) for time in times]
    ys = [axis.y(spot.value) for spot in spots]
    parts = [
        *_grid_lines(axis),
        *_day_labels(spots[0].started, spots[-1].started),
        *_version_marks(spots, xs),
        _value_line(xs, ys),
    ]
    parts += [_value_mark(spot, x, y) for spot, x, y in zip(spots, xs, ys)]
    box = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    return f'<svg class="plot trend" viewBox="{box}" role="img" aria-label="{html_text(alt)}">{"".join(parts)}</svg>'


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    ticks: list[tuple[float, str]]
    log: bool

    def y(self, value: float) -> float:
        """Return the distance from the top edge, where values that are not finite go; clamped to the axis."""
        if not math.isfinite(value):
            return _TOP
        scaled = math.log10(max(value, 10**self.low)) if self.log else value
        return _HEIGHT - _BOTTOM - (scaled - self.low) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)


def _finite_values(spots: Sequence[TrendPoint]) -> list[float]:
    return [spot.value for spot in spots if math.isfinite(spot.value)]


def _linear_axis(spots: Sequence[TrendPoint]) -> _Axis:
    """Return an axis centred on the values, of a range of at least a fifth of them, so that noise does not fill it."""
    values = _finite_values(spots)
    middle = (min(values) + max(values)) / 2
    half = max((max(values) - min(values)) * 0.6, abs(middle) * 0.1, 1e-12)
    low, high = max(middle - half, 0.0) if min(values) >= 0 else middle - half, middle + half
    step = _nice((high - low) / 2)
    first = math.ceil(low / step)
    ticks = [number * step for number in range(first, math.floor(high / step) + 1)]
    return _Axis(low, high, [(tick, f"{tick:.6g}") for tick in ticks], log=False)


def _nice(most: float) -> float:
    """Return the largest 1, 2 or 5 times a power of ten that is at most `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(power * factor for factor in (1, 2, 5) if power * factor <= most * 1.001)


def _log_axis(spots: Sequence[TrendPoint]) -> _Axis:
    positive = [value for value in _finite_values(spots) if value > 0]
    low = math.floor(math.log10(min(positive))) if positive else -8
    high = max(math.ceil(math.log10(max(positive))), low + 1) if positive else -6
    zero = any(value == 0 for value in _finite_values(spots))
    bottom = low - 1 if zero else low
    every = math.ceil((high - low + 1) / 4)
    ticks = [(10.0**power, f"1e{power}") for power in range(low, high + 1, every)]
    return _Axis(bottom, high, ([(0.0, "0")] if zero else []) + ticks, log=True)


def _grid_lines(axis: _Axis) -> list[str]:
    elements = []
    for value, text in axis.ticks:
        y = axis.y(value)
        elements.append(f'<path class="grid" d="M{_LEFT:g} {y:.1f}H{_WIDTH - _RIGHT:g}"/>')
        elements.append(f'<text x="{_LEFT - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{html_text(text)}</text>')
    return elements


def _day_labels(first: str, last: str) -> list[str]:
    ends = [(_LEFT, "start", first[:10])] + ([(_WIDTH - _RIGHT, "end", last[:10])] if last[:10] != first[:10] else [])
    return [
        f'<text x="{x:g}" y="{_HEIGHT - 7:g}" text-anchor="{anchor}">{html_text(day)}</text>' for x, anchor, day in ends
    ]


def _version_marks(spots: Sequence[TrendPoint], xs: Sequence[float]) -> list[str]:
    """Draw a line at the start of each version, labelled where there is space."""
    elements, free = [], _LEFT
    for spot, x in zip(spots, xs):
        if not spot.mark:
            continue
        elements.append(f'<path class="mark" d="M{x:.1f} {_TOP:g}V{_HEIGHT - _BOTTOM:g}"/>')
        if x >= free:
            anchor = "end" if x > _WIDTH - _LABEL - _RIGHT else "start"
            name = html_text(spot.mark[:_DIGITS])
            elements.append(f'<text class="mark" x="{x:.1f}" y="12" text-anchor="{anchor}">{name}</text>')
            free = x + _LABEL
    return elements


def _value_line(xs: Sequence[float], ys: Sequence[float]) -> str:
    places = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys))
    return f'<path class="line" d="M{places}"/>'


def _value_mark(spot: TrendPoint, x: float, y: float) -> str:
    title = f"<title>{html_text(spot.title)}</title>"
    if spot.bad or not math.isfinite(spot.value):
        shape = f"M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0 -7l-7 7"
        return f'<path class="bad" d="{shape}">{title}</path>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6">{title}</circle>'
