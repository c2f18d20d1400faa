"""The history page: failing cells and since when, a calendar of outcomes, trends of times, rates and drift."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from harness.core.outcomes import Outcome
from harness.core.text.counts import counted
from harness.core.text.escaping import clip
from harness.infra.history.database import CellHistory, History
from harness.infra.history.queries import Filters, calendar, listing, totals, trail
from harness.infra.html import page
from harness.infra.html.drawing.trend_svg import TrendPoint, trend
from harness.infra.html.filters import clipped
from harness.infra.html.marks import OUTCOME_MARKS
from harness.infra.html.run_files import Link, link_from
from harness.judge.history.trends import Day, Point, calendar_rows, days_between, points

MOST_LISTED = 300  # cells in the table
MOST_IN_CALENDAR = 80  # cells in the calendar
MOST_DAYS = 120  # newest days in the calendar
MOST_TRENDS = 12  # cells with trends
_POINTS = 120  # newest points of a trend
_ROWS = 15  # rows of the table below it
_STAMP = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, kw_only=True)
class Figure:
    title: str
    note: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class Trend:
    cell: Mapping[str, Any]
    figures: list[Figure]
    rows: list[Point]  # the newest first
    more: int  # points that are not in the table


def render_history(history: History, wanted: Filters, *, days: int, now: str, folder: Path | None = None) -> str:
    """The history page of the `days` days before `now` (ISO, UTC). Deterministic.

    Worst cells come first, up to the limits above; `wanted` filters cells. `folder`: that of the
    page, from which it links the reports of runs.
    """
    until = wanted.until or now
    since = wanted.since or _before(until, days)
    cells = list(history.rows(listing("cells", replace(wanted, since=since, until=until, limit=None))))
    shown = [cell["series"] for cell in cells[:MOST_IN_CALENDAR]]
    (total,) = history.rows(totals(since, until))
    first_day = max(since, total["first"] or since, _before(until, MOST_DAYS - 1))
    dates = days_between(first_day[:10], until[:10])
    past = _past(history, cells)
    page.environment().filters.update(mark=_mark, day=_day_title, figure=_figure_text)
    page.environment().globals.update(report_of=lambda run: _report_of(history, folder, run))
    values = {
        "cells": cells[:MOST_LISTED],
        "hidden": len(cells) - len(cells[:MOST_LISTED]),
        "calendar_hidden": len(cells) - len(shown),
        "trends_hidden": len(cells) - min(len(cells), MOST_TRENDS),
        "total": total,
        "since": since,
        "until": until,
        "dates": dates,
        "calendar": calendar_rows(history.rows(calendar(shown, since)), dates),
        "failing": [
            (cell, past[cell["series"]]) for cell in cells if cell["last"] == "FAIL" and cell["series"] in past
        ],
        "counts": {outcome: sum(cell["last"] == outcome.value for cell in cells) for outcome in Outcome},
        "trends": [_trend(history, cell, since) for cell in cells[:MOST_TRENDS]],
        "narrowed": _narrowed(wanted),
        "index": link_from(folder, "all runs", folder / "index.html") if folder else None,
        "outcome": Outcome,
    }
    return page.render("history.html.j2", values, "history.css")


def _report_of(history: History, folder: Path | None, run: str) -> Link | None:
    """The report of a run: beside the page, else where the run was recorded."""
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
    """Series -> its history, for cells that fail now."""
    failing = {(cell["matrix"], cell["device"]) for cell in cells if cell["last"] == "FAIL"}
    known = {key: history.cell_histories(*key, "9999") for key in failing}
    found = {cell["series"]: known.get((cell["matrix"], cell["device"]), {}).get(cell["cell"]) for cell in cells}
    return {series: past for series, past in found.items() if past is not None}


def _narrowed(wanted: Filters) -> str:
    filters = [f"{name} {value}" for name, value in vars(wanted).items() if value and name in _FILTERS]
    return ", ".join(filters)


_FILTERS = ("matrix", "cell", "stack", "outcome")


def _trend(history: History, cell: Mapping[str, Any], since: str) -> Trend:
    seen = points(history.rows(trail(cell["series"], since, _POINTS)))
    newest = list(reversed(seen))
    return Trend(cell=cell, figures=list(_figures(cell["cell"], seen)), rows=newest[:_ROWS], more=len(newest[_ROWS:]))


def _figures(cell: str, seen: Sequence[Point]) -> Iterator[Figure]:
    for name, title, unit, factor in (
        ("step_p50_s", "Step time", "ms, median of a run's steps", 1000.0),
        ("tokens_per_s", "Tokens/s", "real tokens per second and rank", 1.0),
        ("loss_drift", "Loss drift", "largest relative difference from the control over a run's steps", 1.0),
    ):
        spots = _trend_points(seen, name, factor)
        if any(math.isfinite(spot.value) for spot in spots):
            alt = f"{title} of {clip(cell, 300)} in {counted(len(spots), 'run')}, {unit}"
            yield Figure(title=title, note=unit, svg=trend(spots, alt=alt, log=name == "loss_drift"))


def _trend_points(seen: Sequence[Point], name: str, factor: float) -> list[TrendPoint]:
    """The points that have a metric; a version is marked at its first point."""
    found: list[TrendPoint] = []
    version = seen[0].version if seen else ""
    for point in seen:
        value: float | None = getattr(point, name)
        if value is None:
            continue
        details = ", ".join(clipped(text, 200) for text in (point.version, point.outcome, point.run_id))
        title = f"{point.started}: {value * factor:.4g}, {details}"
        bad, mark = point.outcome == "FAIL", _short(point.version) if point.version != version else ""
        found.append(TrendPoint(started=point.started, value=value * factor, title=title, bad=bad, mark=mark))
        version = point.version
    return found


def _short(version: str) -> str:
    """The identifying part of "megatron-lm main = 0123456789ab": its last word."""
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
