"""The queries of the history, as SQL; harness/history/database.py executes them.

Each first picks runs or points by an index, newest first, and reads the rest for those only: the time of a
listing grows with what it shows, not with the history. Values from users are always bound parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.core.outcomes import DECIDED, KnownFailure, Outcome
from harness.core.serialization import dumps

if TYPE_CHECKING:
    from harness.core.run.run_plan import BaselineRequest

LISTINGS = ("runs", "cells", "outcomes", "findings", "metrics")


def in_list(outcomes: Iterable[Outcome]) -> str:
    """Return outcomes as the right side of SQL's IN."""
    return f"({', '.join(repr(outcome.value) for outcome in outcomes)})"


_DECIDED = in_list(DECIDED)
GREEN = in_list((Outcome.PASS, Outcome.FLAKY))
UNDECIDED = in_list(outcome for outcome in Outcome if outcome not in DECIDED)
Query = tuple[str, dict[str, object]]


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Filters of a listing; empty: everything. Patterns are shell-style, moments ISO in UTC."""

    matrix: str = ""  # pattern
    cell: str = ""  # pattern over names and ids
    stack: str = ""  # pattern over names and versions of stacks
    outcome: str = ""
    since: str = ""  # this moment or later
    until: str = ""  # before this moment
    limit: int | None = None  # rows, the newest


def listing(what: str, wanted: Filters) -> Query:
    """Return the query for one of LISTINGS."""
    return {"runs": _runs, "cells": _cells, "outcomes": _outcomes, "findings": _findings, "metrics": _metrics}[what](
        wanted
    )


def _limit(wanted: Filters) -> str:
    return "" if wanted.limit is None else "LIMIT :limit"


def _values(wanted: Filters) -> dict[str, object]:
    return {name: value for name, value in vars(wanted).items() if value not in ("", None)}


def _conditions(wanted: Filters, *, runs: bool) -> str:
    """Return the WHERE clause on the tables c (cells) and s (series), or r (runs)."""
    moment, matrix = ("r.started", "r.matrix") if runs else ("c.started", "s.matrix")
    conditions = {
        "since": f"{moment} >= :since",
        "until": f"{moment} < :until",
        "matrix": f"{matrix} GLOB :matrix",
    }
    conditions |= {} if runs else _of_cells()
    clauses = [text for name, text in conditions.items() if getattr(wanted, name)]
    if runs and (wanted.cell or wanted.stack or wanted.outcome):
        inner = " AND ".join(text for name, text in _of_cells().items() if getattr(wanted, name))
        clauses.append(
            f"EXISTS (SELECT 1 FROM cells c JOIN series s ON s.id = c.series WHERE c.run = r.id AND {inner})"
        )
    return " AND ".join(clauses) or "1"


def _of_cells() -> dict[str, str]:
    return {
        "cell": "(s.name GLOB :cell OR c.cell_id GLOB :cell)",
        "stack": "(c.stack GLOB :stack OR c.version GLOB :stack)",
        "outcome": "c.outcome = :outcome",
    }


def _runs(wanted: Filters) -> Query:
    """Return one row per run, with the number of its cells of each outcome."""
    sums = ", ".join(f"sum(n.outcome = '{name}') AS {name.lower()}" for name in _OUTCOMES)
    return (
        f"""WITH r AS (SELECT * FROM runs r WHERE {_conditions(wanted, runs=True)}
          ORDER BY r.started DESC, r.run_id DESC {_limit(wanted)})
        SELECT r.run_id, r.started, r.matrix, r.verdict, count(n.id) AS cells, {sums},
          sum(n.known = '{KnownFailure.EXPIRED}') AS expired,
          round(r.wall_s, 1) AS wall_s, r.harness, r.harness_commit, r.host,
          r.hardware, r.directory
        FROM r LEFT JOIN cells n ON n.run = r.id GROUP BY r.id ORDER BY r.started DESC, r.run_id DESC""",
        _values(wanted),
    )


_OUTCOMES = tuple(outcome.value for outcome in Outcome)


def _cells(wanted: Filters) -> Query:
    """Return one row per cell: its last outcome and how often each occurred. The worst first.

    A cell is listed if it had the wanted outcome at least once; its other outcomes are counted too.
    `flaky` are passes on a retry. `turned` counts changes between green and red at the same version of its stack.
    """
    sums = ", ".join(f"sum(outcome = '{name}') AS {name.lower()}" for name in _OUTCOMES)
    having = "HAVING sum(outcome = :outcome) > 0" if wanted.outcome else ""
    return (
        f"""WITH p AS (
          SELECT c.series, c.started, c.outcome, c.known, c.version, c.stack, s.name, s.matrix, s.device,
            row_number() OVER w AS place, lead(c.outcome) OVER w AS before, lead(c.version) OVER w AS before_version
          FROM series s JOIN cells c ON c.series = s.id WHERE {_conditions(replace(wanted, outcome=""), runs=False)}
          WINDOW w AS (PARTITION BY c.series ORDER BY c.started DESC, c.id DESC))
        SELECT series, matrix, name AS cell, stack, device, max(CASE WHEN place = 1 THEN outcome END) AS last,
          max(started) AS last_started, max(CASE WHEN place = 1 THEN version END) AS version, count(*) AS runs, {sums},
          sum(known = '{KnownFailure.EXPIRED}') AS expired,
          round(1.0 * sum(outcome = '{Outcome.FLAKY}') / nullif(sum(outcome IN {_DECIDED}), 0), 4) AS flaky_rate,
          sum(outcome IN {_DECIDED} AND before IN {_DECIDED}
            AND (outcome = '{Outcome.FAIL}') <> (before = '{Outcome.FAIL}') AND version = before_version) AS turned
        FROM p GROUP BY series {having}
        ORDER BY last = '{Outcome.FAIL}' DESC, last = '{Outcome.ERROR}' DESC,
          last IN {in_list((Outcome.XPASS, Outcome.FLAKY))} DESC, flaky_rate DESC, fail DESC,
          matrix, cell {_limit(wanted)}""",
        _values(wanted),
    )


def _points(wanted: Filters, columns: str) -> str:
    """Return the newest points that match, as a table p with the name of the cell and the id of the run."""
    return f"""WITH p AS (
      SELECT c.id, c.started, r.run_id, r.matrix, s.name, {columns}
      FROM cells c JOIN series s ON s.id = c.series JOIN runs r ON r.id = c.run
      WHERE {_conditions(wanted, runs=False)} ORDER BY c.started DESC, c.id {_limit(wanted)})"""


def _outcomes(wanted: Filters) -> Query:
    """Return one row per cell and run, with the most used metrics."""
    picked = ", ".join(f"max(CASE WHEN m.name = '{name}' THEN m.value END) AS {name}" for name in SHOWN)
    columns = "c.cell_id, c.stack, c.version, c.outcome, c.known, c.reason, c.attempts"
    return (
        f"""{_points(wanted, columns)}
        SELECT p.started, p.run_id, p.matrix, p.name AS cell, p.cell_id, p.stack, p.version, p.outcome, p.known,
          p.attempts, {picked}, p.reason
        FROM p LEFT JOIN metrics m ON m.cell = p.id GROUP BY p.id ORDER BY p.started DESC, p.id""",
        _values(wanted),
    )


SHOWN = ("step_p50_s", "tokens_per_s", "peak_memory_bytes", "loss_drift", "wall_s")


def _findings(wanted: Filters) -> Query:
    """Return one row per finding of the newest points."""
    return (
        f"""{_points(wanted, "c.version, c.outcome")}
        SELECT p.started, p.run_id, p.matrix, p.name AS cell, p.version, p.outcome, f.lane, f."check", f.severity,
          f.fault_class, f.message, f.place, f.measured, f.bound
        FROM p CROSS JOIN findings f ON f.cell = p.id ORDER BY p.started DESC, p.id, f.position {_limit(wanted)}""",
        _values(wanted),
    )


def _metrics(wanted: Filters) -> Query:
    """Return one row per metric of the newest points."""
    return (
        f"""{_points(wanted, "c.stack, c.version, c.outcome")}
        SELECT p.started, p.run_id, p.matrix, p.name AS cell, p.stack, p.version, p.outcome, m.name AS metric, m.value
        FROM p CROSS JOIN metrics m ON m.cell = p.id ORDER BY p.started DESC, p.id, m.name {_limit(wanted)}""",
        _values(wanted),
    )


def calendar(series: Sequence[int], since: str) -> Query:
    """Return how often each outcome occurred on each day: one row per series, day and outcome."""
    return (
        """SELECT c.series, substr(c.started, 1, 10) AS day, c.outcome, count(*) AS times
        FROM json_each(:series) j JOIN cells c ON c.series = j.value WHERE c.started >= :since
        GROUP BY c.series, day, c.outcome""",
        {"series": dumps(list(series)), "since": since},
    )


def trail(series: int, since: str, most: int) -> Query:
    """Return the newest points of a series with the values of its charts, the newest first."""
    picked = ", ".join(
        f"(SELECT value FROM metrics m WHERE m.cell = c.id AND m.name = '{name}') AS {name}" for name in SHOWN
    )
    return (
        f"""SELECT c.started, r.run_id, r.hardware, c.version, r.harness_commit, c.outcome, c.reason, {picked}
        FROM cells c JOIN runs r ON r.id = c.run WHERE c.series = :series AND c.started >= :since
        ORDER BY c.started DESC, c.id DESC LIMIT :most""",
        {"series": series, "since": since, "most": most},
    )


def baseline(matrix: str, cells: Sequence[str], except_run: str, requested: BaselineRequest) -> Query:
    """Return green runs of cells by id, except `except_run`: `requested.runs` per cell and hardware, newest first.

    Of any version of their stack, see the column `version`. Seconds are those that compared_seconds (judge) compares.
    """
    return (
        f"""SELECT * FROM (
          SELECT c.cell_id, r.hardware, r.run_id, r.started, c.version, m.value AS seconds,
            row_number() OVER (PARTITION BY c.cell_id, r.hardware ORDER BY r.started DESC, r.id DESC) AS place
          FROM json_each(:cells) j JOIN cells c ON c.cell_id = j.value JOIN runs r ON r.id = c.run
          JOIN metrics m ON m.cell = c.id AND m.name = CASE WHEN r.device = 'cpu' THEN 'step_busy_s' ELSE 'packed_s' END
          WHERE r.matrix = :matrix AND r.run_id <> :run AND c.outcome IN {GREEN}
            AND r.started >= :since AND m.value > 0)
        WHERE place <= :runs ORDER BY cell_id, hardware, place""",
        {
            "cells": dumps(list(cells)),
            "matrix": matrix,
            "run": except_run,
            "since": requested.since,
            "runs": requested.runs,
        },
    )


def durations(cells: Sequence[str]) -> Query:
    """Return the newest time of each cell by id, in seconds, and its run: number, time, and its cells' summed times."""
    return (
        """SELECT cell_id, seconds, run, wall_s,
          (SELECT sum(m.value) FROM cells c JOIN metrics m ON m.cell = c.id AND m.name = 'wall_s'
            WHERE c.run = found.run) AS cells_s
        FROM (
          SELECT c.cell_id, m.value AS seconds, c.run, r.wall_s,
            row_number() OVER (PARTITION BY c.cell_id ORDER BY c.started DESC, c.id DESC) AS place
          FROM json_each(:cells) j JOIN cells c ON c.cell_id = j.value JOIN runs r ON r.id = c.run
          JOIN metrics m ON m.cell = c.id AND m.name = 'wall_s' WHERE m.value > 0) found
        WHERE place = 1""",
        {"cells": dumps(list(cells))},
    )


def totals(since: str, until: str) -> Query:
    """Return one row: how many runs and matrices are in a window, and the start of its first and last run."""
    return (
        """SELECT count(*) AS runs, count(DISTINCT matrix) AS matrices, min(started) AS first, max(started) AS last
        FROM runs WHERE started >= :since AND started <= :until""",
        {"since": since, "until": until},
    )
