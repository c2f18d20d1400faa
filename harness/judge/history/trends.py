"""The content of the history page as values: days of a calendar, points of a trend, changes of version. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from harness.core.outcomes import Outcome

# The first of these is shown for a day on which a cell had several outcomes.
WORST_FIRST = (
    Outcome.FAIL,
    Outcome.ERROR,
    Outcome.XPASS,
    Outcome.FLAKY,
    Outcome.XFAIL,
    Outcome.PASS,
    Outcome.NOT_RUN,
    Outcome.REJECTED,
)


@dataclass(frozen=True, kw_only=True)
class Day:
    """One cell on one day."""

    day: str  # ISO date
    outcome: str  # the worst of the day; empty: it did not run
    times: Mapping[str, int]  # outcome -> runs


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of one cell. Times in seconds, rates per rank, drift relative to the control; None: not measured."""

    started: str
    run_id: str
    version: str
    harness_commit: str
    hardware: str
    outcome: str
    reason: str
    step_p50_s: float | None
    tokens_per_s: float | None
    loss_drift: float | None
    new_version: bool  # differs from that of the point before


def days_between(first: str, last: str) -> list[str]:
    """ISO dates from the first to the last, both included."""
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    return [(start + timedelta(days=number)).isoformat() for number in range((end - start).days + 1)]


def calendar_rows(rows: Iterable[Mapping[str, Any]], days: Sequence[str]) -> dict[int, list[Day]]:
    """Series -> one Day per date of `days`, from rows of (series, day, outcome, times)."""
    seen: dict[int, dict[str, dict[str, int]]] = {}
    for row in rows:
        seen.setdefault(row["series"], {}).setdefault(row["day"], {})[row["outcome"]] = row["times"]
    return {series: [_day(day, found.get(day, {})) for day in days] for series, found in seen.items()}


def _day(day: str, times: Mapping[str, int]) -> Day:
    return Day(
        day=day, outcome=next((outcome.value for outcome in WORST_FIRST if outcome.value in times), ""), times=times
    )


def points(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Points in order of time, from rows with the newest first."""
    found: list[Point] = []
    names = set(Point.__dataclass_fields__) - {"new_version"}
    for row in reversed(list(rows)):
        new = bool(found) and row["version"] != found[-1].version
        found.append(Point(**{name: row[name] for name in names}, new_version=new))
    return found
