"""The tables of the history. PRAGMA user_version of a file is the number of migrations that were applied to it."""

from __future__ import annotations

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
