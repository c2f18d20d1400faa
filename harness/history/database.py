"""The history of runs, an SQLite file (docs/history.md); no other module opens it.

PRAGMA user_version of a file is the number of MIGRATIONS that were applied to it.

On a local disk the journal is a write-ahead log: readers and one writer work side by side. That log needs
memory shared between processes, which network file systems lack; there SQLite's rollback journal is used.
A writer waits for others and takes the write lock before it reads, so that no transaction has to be retried.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.core.errors import HarnessError, InputError, Problem
from harness.core.outcomes import Outcome
from harness.history.queries import UNDECIDED, Query
from harness.history.trends import CellRow, RunRow
from harness.infra.file_system import is_network
from harness.infra.files import is_file

WAIT_S = 5.0  # for other writers; then the run is not recorded, since its verdict must not wait
_FIRST = (
    """CREATE TABLE runs (
      id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, matrix TEXT NOT NULL, matrix_file TEXT NOT NULL,
      started TEXT NOT NULL, verdict TEXT NOT NULL, wall_s REAL, harness TEXT, harness_commit TEXT, host TEXT,
      device TEXT NOT NULL, hardware TEXT NOT NULL, directory TEXT NOT NULL)""",
    "CREATE INDEX runs_started ON runs (started)",
    # What is tracked over time. A cell's stack is part of its name.
    """CREATE TABLE series (
      id INTEGER PRIMARY KEY, matrix TEXT NOT NULL, name TEXT NOT NULL, device TEXT NOT NULL,
      UNIQUE (matrix, name, device))""",
    """CREATE TABLE cells (
      id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
      series INTEGER NOT NULL REFERENCES series (id), started TEXT NOT NULL, cell_id TEXT NOT NULL, role TEXT NOT NULL,
      stack TEXT NOT NULL, version TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
      known TEXT NOT NULL, attempts INTEGER NOT NULL, line INTEGER, UNIQUE (run, cell_id))""",
    "CREATE INDEX cells_series ON cells (series, started, outcome)",
    """CREATE TABLE findings (
      id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cells (id) ON DELETE CASCADE, position INTEGER NOT NULL,
      lane TEXT NOT NULL, "check" TEXT NOT NULL, severity TEXT NOT NULL, fault_class TEXT NOT NULL,
      message TEXT NOT NULL, place TEXT NOT NULL, measured TEXT NOT NULL, bound TEXT NOT NULL)""",
    "CREATE INDEX findings_cell ON findings (cell)",
    # A value that is not a number is NULL.
    """CREATE TABLE metrics (
      cell INTEGER NOT NULL REFERENCES cells (id) ON DELETE CASCADE, name TEXT NOT NULL, value REAL,
      PRIMARY KEY (cell, name)) WITHOUT ROWID""",
)
_BASELINES = ("CREATE INDEX cells_id ON cells (cell_id)",)
_CONTROLS = ("UPDATE cells SET role = 'control' WHERE role = 'reference'",)
MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _BASELINES, _CONTROLS)


class HistoryError(HarnessError):
    """The history cannot be written or read, for a reason outside the harness."""


@dataclass(frozen=True, kw_only=True)
class CellHistory:
    """Earlier outcomes of a cell. ERROR and REJECTED decide nothing and are skipped."""

    outcome: str  # of the last run that decided
    run_id: str
    started: str
    version: str
    since_run: str  # first run of the current streak of one colour, green or red
    since: str  # when it started
    since_version: str
    before_version: str  # of the last run before the streak, which had the other colour; empty when there is none
    before_run: str
    before: str  # when that one started
    check: str  # of its first finding in the last run that decided; empty without findings

    @property
    def green(self) -> bool:
        """Return whether the cell did not fail in the last run that decided."""
        return self.outcome != "FAIL"


class History:
    """An open history, see `opened`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def record(self, run: RunRow, directory: Path) -> None:
        """Replace the rows of a run, in one transaction."""
        with _writing(self.connection):
            self.connection.execute("DELETE FROM runs WHERE run_id = ?", (_stored(run.run_id),))
            values = {key: value for key, value in vars(run).items() if key != "cells"}
            number = _insert(self.connection, "runs", **values, directory=str(directory))
            for cell in run.cells:
                self._record_cell(run, number, cell)

    def _record_cell(self, run: RunRow, number: int, cell: CellRow) -> None:
        identity = tuple(map(_stored, (run.matrix, cell.name, run.device)))
        self.connection.execute("INSERT OR IGNORE INTO series (matrix, name, device) VALUES (?, ?, ?)", identity)
        (series,) = self.connection.execute(
            "SELECT id FROM series WHERE matrix = ? AND name = ? AND device = ?", identity
        ).fetchone()
        values = {key: value for key, value in vars(cell).items() if key not in ("name", "findings", "metrics")}
        row = _insert(self.connection, "cells", run=number, series=series, started=run.started, **values)
        for position, finding in enumerate(cell.findings):
            _insert(self.connection, "findings", cell=row, position=position, **vars(finding))
        self.connection.executemany(
            "INSERT INTO metrics (cell, name, value) VALUES (?, ?, ?)",
            [(row, name, None if math.isnan(value) else value) for name, value in cell.metrics.items()],
        )

    def cell_histories(self, matrix: str, device: str, before: str) -> dict[str, CellHistory]:
        """Return name of a cell -> its history in the runs of a matrix that started before a moment (ISO, UTC)."""
        rows = self.connection.execute(_CELL_HISTORIES, {"matrix": matrix, "device": device, "before": before})
        return {
            row["name"]: CellHistory(**{key: row[key] or "" for key in CellHistory.__dataclass_fields__})
            for row in rows
        }

    def rows(self, query: Query) -> Iterator[dict[str, Any]]:
        """Yield the rows of a query of queries.py."""
        for row in self.connection.execute(*query):
            yield {name: _text(value) if isinstance(value, bytes) else value for name, value in zip(row.keys(), row)}

    def previous(self, matrix: str, device: str, before: str) -> tuple[str, str] | None:
        """Return id and start of the newest run of a matrix that started before a moment; None without one."""
        row = self.connection.execute(
            """SELECT run_id, started FROM runs WHERE matrix = ? AND device = ? AND started < ?
            ORDER BY started DESC, id DESC LIMIT 1""",
            (matrix, device, before),
        ).fetchone()
        return row and (row["run_id"], row["started"])

    def directory(self, run_id: str) -> Path | None:
        """Return the run directory as it was recorded; None when the run is not known."""
        row = self.connection.execute("SELECT directory FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return Path(row["directory"]) if row else None

    def prune(self, older_than: str | None, keep_last: int, *, dry_run: bool = False) -> list[str]:
        """Remove runs that started before a moment (None: all), except the newest of each matrix; return their ids."""
        with _writing(self.connection):
            removed = self.connection.execute(
                """SELECT id, run_id FROM (
                  SELECT *, row_number() OVER (PARTITION BY matrix ORDER BY started DESC, id DESC) AS place FROM runs)
                WHERE place > ? AND started < ? ORDER BY started, id""",
                (keep_last, older_than or _END_OF_TIME),
            ).fetchall()
            if not dry_run:
                self.connection.executemany("DELETE FROM runs WHERE id = ?", [(row["id"],) for row in removed])
                self.connection.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM cells)")
        if removed and not dry_run:
            with suppress(sqlite3.OperationalError):  # a reader is active: later rows reuse the space
                self.connection.execute("VACUUM")
        return [_text(row["run_id"]) if isinstance(row["run_id"], bytes) else row["run_id"] for row in removed]


_END_OF_TIME = "9999"
_TABLES = {"runs", "series", "cells", "findings", "metrics"}
# One look-up in the index cells_series per series, however long the history is.
_CELL_HISTORIES = f"""
WITH decided AS (
  SELECT s.id AS series, s.name AS name,
    (SELECT c.id FROM cells c WHERE c.series = s.id AND c.started < :before AND c.outcome NOT IN {UNDECIDED}
     ORDER BY c.started DESC, c.id DESC LIMIT 1) AS last
  FROM series s WHERE s.matrix = :matrix AND s.device = :device),
turned AS (
  SELECT d.name, d.series, c.*, (
    SELECT o.id FROM cells o WHERE o.series = d.series AND o.started < :before
      AND o.outcome NOT IN {UNDECIDED} AND (o.outcome = '{Outcome.FAIL}') <> (c.outcome = '{Outcome.FAIL}')
    ORDER BY o.started DESC, o.id DESC LIMIT 1) AS other
  FROM decided d JOIN cells c ON c.id = d.last)
SELECT t.name, t.outcome, r.run_id, t.started, t.version,
  (SELECT "check" FROM findings WHERE cell = t.id ORDER BY position LIMIT 1) AS "check",
  o.version AS before_version, o.started AS before, br.run_id AS before_run,
  f.started AS since, f.version AS since_version, fr.run_id AS since_run
FROM turned t JOIN runs r ON r.id = t.run
LEFT JOIN cells o ON o.id = t.other
LEFT JOIN runs br ON br.id = o.run
JOIN cells f ON f.id = (
  SELECT n.id FROM cells n WHERE n.series = t.series AND n.outcome NOT IN {UNDECIDED}
    AND (o.id IS NULL OR n.started > o.started OR (n.started = o.started AND n.id > o.id))
  ORDER BY n.started, n.id LIMIT 1)
JOIN runs fr ON fr.id = f.run
"""


def is_there(path: Path) -> bool:
    """Return whether there is a history. An empty file is none: its first writer may just have created it."""
    return is_file(path) and path.stat().st_size > 0


@contextmanager
def opened(path: Path, *, write: bool) -> Iterator[History]:
    """Open the history in a file. `write` creates it; without `write` a missing file is an InputError.

    A reader changes nothing in the file, and sees only runs with a valid date and cells with a known outcome, with
    texts and numbers where they belong.
    HistoryError when it is busy for WAIT_S, damaged, or cannot be written; InputError when a newer harness or another
    program wrote it.
    """
    if not write and not is_there(path):
        hint = "every run is recorded at its end; `harness history import RUN...` adds older ones"
        raise InputError(Problem(message="there is no history", file=str(path), hint=hint))
    try:
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        with closing(_connect(path, write=write)) as connection:
            _check(connection, path, write=write)
            if write:
                _prepare(connection, path)
            else:
                connection.executescript(_valid_rows())
            yield History(connection)
    except (sqlite3.Error, OSError) as error:
        raise HistoryError(f"history {path}: {error}") from error


def _connect(path: Path, *, write: bool) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?mode={'rwc' if write else 'ro'}"
    connection = sqlite3.connect(address, uri=True, timeout=WAIT_S, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.text_factory = _text
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


@cache
def _valid_rows() -> str:
    """Return views that hide the tables of the same names from a reader, with rows and values of the right types only.

    Rows with wrong values are left out, except of `cells`: there only columns of the index cells_series are tested, so
    that the index suffices to count outcomes, and other values of a wrong type are NULL, or empty if they are texts.
    """
    with closing(sqlite3.connect(":memory:")) as empty:
        for statement in chain.from_iterable(MIGRATIONS):
            empty.execute(statement)
        known = {table: empty.execute(f"PRAGMA table_info ({table})").fetchall() for table in _TABLES}
    right_date = "strftime('%Y-%m-%dT%H:%M:%SZ', started, '+0 days') = started"
    outcomes = ", ".join(repr(outcome.value) for outcome in Outcome)
    views = [f"CREATE TEMP VIEW cells AS SELECT {', '.join(_value(*column[1:4]) for column in known['cells'])}"]
    views[0] += f" FROM main.cells WHERE {right_date} AND outcome IN ({outcomes}) AND typeof(series) = 'integer'"
    for table in sorted(_TABLES - {"cells"}):
        tests = [_is_right(*column[1:4]) for column in known[table]] + [right_date] * (table == "runs")
        views.append(f"CREATE TEMP VIEW {table} AS SELECT * FROM main.{table} WHERE {' AND '.join(tests)}")
    return ";".join(views)


_TYPES = {"TEXT": "'text'", "INTEGER": "'integer'", "REAL": "'real', 'integer'"}
_AS_THEY_ARE = ("id", "run", "series", "started", "cell_id", "outcome")  # indexed columns of `cells`


def _is_right(column: str, kind: str, is_required: int) -> str:
    return f"""typeof("{column}") IN ({_TYPES[kind]}{"" if is_required else ", 'null'"})"""


def _value(column: str, kind: str, is_required: int) -> str:
    if column in _AS_THEY_ARE:
        return column
    instead = "''" if kind == "TEXT" else "NULL"
    return f"CASE WHEN {_is_right(column, kind, is_required)} THEN {column} ELSE {instead} END AS {column}"


def _check(connection: sqlite3.Connection, path: Path, *, write: bool) -> None:
    """Raise InputError for a file of another program or of a newer harness."""
    known = _version(connection)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables >= _TABLES and (tables or known or not write):
        hint = "choose another file with --history"
        raise InputError(Problem(message="is not a history of the harness", file=str(path), hint=hint))
    if known > len(MIGRATIONS):
        version = f"tables of version {known}"
        allowed = f"at most version {len(MIGRATIONS)}"
        hint = "use that harness, or another file with --history"
        raise InputError(
            Problem(message="was written by a newer harness", file=str(path), found=version, allowed=allowed, hint=hint)
        )


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the tables to this version."""
    _set_journal(connection, "DELETE" if is_network(path) else "WAL")
    if _version(connection) < len(MIGRATIONS):
        with _writing(connection):
            for script in MIGRATIONS[_version(connection) :]:
                for statement in script:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _set_journal(connection: sqlite3.Connection, mode: str) -> None:
    """Set the journal mode with retries: it needs exclusive access, for which SQLite does not wait."""
    deadline = time.monotonic() + WAIT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != mode.lower():
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock from the beginning of a transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _text(value: bytes) -> str:
    """Decode a text of a file that may be damaged or of another program."""
    return value.decode("utf-8", "replace")


def _stored(value: Any) -> Any:
    """Escape a lone surrogate, which a message may contain: SQLite stores UTF-8."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _insert(connection: sqlite3.Connection, table: str, **values: Any) -> int:
    """Insert one row and return its number. Column names come from this file only."""
    columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
    cursor = connection.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(map(_stored, values.values()))
    )
    return int(cursor.lastrowid or 0)
