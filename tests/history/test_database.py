from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.commands.history import table_text
from harness.core.errors import InputError
from harness.core.run.run_plan import BaselineRequest
from harness.history import database as history_module
from harness.history.database import MIGRATIONS, HistoryError, opened
from harness.history.page import render_history
from harness.history.queries import LISTINGS, Filters, baseline, calendar, listing
from harness.history.trends import run_row
from harness.reporting.output_files import write_table
from tests.history.history_runs import CELL, run_of, timed
from tests.processes import HUNG_S
from tests.sample_report import sample_report

FIRST_OF_SEPTEMBER = "2026-09-01T00:00:00Z"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(file) as connection:
        found = [tuple(row) for row in connection.execute(query)]
    connection.close()
    return found


def record(file: Path, *runs: object) -> None:
    with opened(file, write=True) as history:
        for run in runs:
            history.record(run, file.parent / "run")  # type: ignore[arg-type]


def test_a_run_becomes_a_row_for_itself_each_cell_finding_and_metric(file: Path) -> None:
    run = run_row(sample_report())
    record(file, run)
    assert rows(file, "SELECT run_id, matrix, verdict FROM runs") == [(run.run_id, "smoke", "fail")]
    for table, count in (
        ("cells", len(run.cells)),
        ("findings", sum(len(cell.findings) for cell in run.cells)),
        ("metrics", sum(len(cell.metrics) for cell in run.cells)),
    ):
        assert rows(file, f"SELECT count(*) FROM {table}") == [(count,)]
        assert count > 2


def test_a_lone_surrogate_in_any_text_is_stored_as_an_escape(file: Path) -> None:
    run = run_of(1)
    cells = tuple(replace(cell, reason="half \ud800") for cell in run.cells)
    record(file, replace(run, host="\udfff", matrix="m\ud800", cells=cells))
    assert rows(file, "SELECT host, matrix FROM runs") == [("\\udfff", "m\\ud800")]
    assert ("half \\ud800",) in rows(file, "SELECT reason FROM cells")


def test_recording_a_run_again_replaces_its_rows(file: Path) -> None:
    record(file, run_row(sample_report()), run_of(1), replace(run_of(1, "FAIL"), verdict="fail"))
    assert rows(file, "SELECT outcome FROM cells WHERE run = (SELECT id FROM runs WHERE run_id = 'smoke-01')") == [
        ("FAIL",)
    ]
    assert rows(file, "SELECT count(*) FROM metrics WHERE cell NOT IN (SELECT id FROM cells)") == [(0,)]


def test_values_that_are_not_finite_are_stored_as_such(file: Path) -> None:
    record(file, timed(run_of(1), {"loss_last": math.nan, "loss_drift": math.inf}))
    query = "SELECT value FROM metrics WHERE name = '{}'"
    assert rows(file, query.format("loss_last")) == [(None,)]
    assert rows(file, query.format("loss_drift")) == [(math.inf,)]


def test_the_past_of_a_cell_is_its_last_verdict_and_since_when(file: Path) -> None:
    record(
        file,
        run_of(1),
        run_of(2, version="megatron-core 0.18.2"),
        run_of(3, "FAIL", version="megatron-core 0.19.0"),
        run_of(4, "ERROR"),
        run_of(5, "FAIL", version="megatron-core 0.19.2"),
        run_of(6, "ERROR"),
    )
    with opened(file, write=False) as history:
        past = history.cell_histories("smoke", "cpu", FIRST_OF_SEPTEMBER)[CELL]
        before = history.cell_histories("smoke", "cpu", run_of(3).started)[CELL]
        assert history.cell_histories("other", "cpu", FIRST_OF_SEPTEMBER) == {}
        assert history.cell_histories("smoke", "cpu", run_of(1).started) == {}
    assert (past.outcome, past.run_id, past.green) == ("FAIL", "smoke-05", False)
    assert (past.since_run, past.since, past.since_version) == ("smoke-03", run_of(3).started, "megatron-core 0.19.0")
    assert past.before_version == "megatron-core 0.18.2"
    assert (before.outcome, before.run_id, before.since_run, before.before_version) == (
        "PASS",
        "smoke-02",
        "smoke-01",
        "",
    )


def test_the_past_of_a_cell_that_failed_has_the_check_that_failed_first(file: Path) -> None:
    run = run_row(sample_report())
    record(file, run)
    with opened(file, write=False) as history:
        found = history.cell_histories(run.matrix, run.device, "9999")
    failed = {cell.name: cell.findings[0].check for cell in run.cells if cell.outcome == "FAIL"}
    assert failed
    assert {name: past.check for name, past in found.items() if not past.green} == failed


def test_runs_recorded_out_of_order_are_read_in_order(file: Path) -> None:
    record(file, run_of(5, "FAIL"), run_of(2, "FAIL"), run_of(4, "FAIL"), run_of(3))
    with opened(file, write=False) as history:
        past = history.cell_histories("smoke", "cpu", FIRST_OF_SEPTEMBER)[CELL]
    assert (past.run_id, past.since_run) == ("smoke-05", "smoke-04")


def test_the_write_ahead_log_is_used_on_a_local_disk_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(file, run_of(1))
    assert rows(file, "PRAGMA journal_mode") == [("wal",)]
    monkeypatch.setattr(history_module, "is_network", lambda path: True)
    record(file, run_of(2))
    assert rows(file, "PRAGMA journal_mode") == [("delete",)]
    assert rows(file, "SELECT count(*) FROM runs") == [(2,)]


def test_reading_a_missing_history_says_how_to_create_one(file: Path) -> None:
    with pytest.raises(InputError, match=r"there is no history.*harness history import"), opened(file, write=False):
        pass
    assert not file.exists()


def test_a_file_of_a_newer_harness_is_not_changed(file: Path) -> None:
    record(file, run_of(1))
    rows(file, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = file.read_bytes()
    with pytest.raises(InputError, match="was written by a newer harness"), opened(file, write=True):
        pass
    assert file.read_bytes() == before


def test_a_file_that_is_not_a_history_is_an_error(file: Path) -> None:
    file.write_text("not a database, and long enough to be read as one\n" * 100)
    with (
        pytest.raises(HistoryError, match=r"history .*history\.sqlite: file is not a database"),
        opened(file, write=True),
    ):
        pass


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from harness.history.database import opened
from tests.history.history_runs import run_of
file, writer, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    run = replace(run_of(1 + number % 28), run_id=f"{writer}-{number}")
    with opened(file, write=True) as history:
        history.record(run, file.parent)
    print(number, flush=True)
"""


def writer(root: Path, file: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(file), name, str(count)]
    return subprocess.Popen(command, cwd=root, env=dict(os.environ), stdout=subprocess.PIPE, text=True)


def test_four_writers_at_once_lose_nothing(root: Path, file: Path) -> None:
    writers = [writer(root, file, str(number), 50) for number in range(4)]
    assert [one.communicate(timeout=HUNG_S)[1] or one.returncode for one in writers] == [0] * 4
    assert rows(file, "SELECT count(*), count(DISTINCT run_id) FROM runs") == [(200, 200)]
    per_run = len(run_of(1).cells[0].metrics)
    assert rows(file, "SELECT count(*) FROM metrics") == [(200 * per_run,)]
    assert rows(file, "PRAGMA integrity_check") == [("ok",)]


KILLED = """
import os, signal, sys
from pathlib import Path
from harness.history import database as module
from tests.history.history_runs import run_of
insert, seen = module._insert, []
def dying(connection, table, **values):
    seen.append(table)
    if table == "findings" or len(seen) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return insert(connection, table, **values)
module._insert = dying
module.is_network = lambda path: sys.argv[2] == "True"
with module.opened(Path(sys.argv[1]), write=True) as history:
    from harness.history.trends import run_row
    from tests.sample_report import sample_report
    history.record(run_row(sample_report()), Path(sys.argv[1]).parent)
"""


@pytest.mark.parametrize("network", [False, True])
def test_a_writer_killed_in_the_middle_leaves_a_whole_file(
    root: Path, file: Path, monkeypatch: pytest.MonkeyPatch, network: bool
) -> None:
    monkeypatch.setattr(history_module, "is_network", lambda path: network)
    record(file, run_of(1))
    done = subprocess.run([sys.executable, "-c", KILLED, str(file), str(network)], cwd=root)
    assert done.returncode == -signal.SIGKILL
    assert rows(file, "PRAGMA integrity_check") == [("ok",)]
    assert rows(file, "SELECT run_id FROM runs") == [("smoke-01",)]
    record(file, run_of(2))
    assert rows(file, "SELECT count(*) FROM cells") == [(2,)]


@pytest.mark.parametrize(("device", "seconds"), [("cpu", 0.1), ("NVIDIA H200", 0.2)])
def test_a_baseline_on_a_gpu_comes_from_the_timing_leg_and_names_the_version(
    file: Path, device: str, seconds: float
) -> None:
    run = timed(run_of(1), {"step_busy_s": 0.1, "packed_s": 0.2})
    cells = tuple(replace(cell, version="megatron-lm main = 1a2b") for cell in run.cells)
    record(file, replace(run, device=device, hardware=device, cells=cells))
    with opened(file, write=False) as history:
        (row, *_) = history.rows(
            baseline("smoke", [run.cells[0].cell_id], "smoke-08", BaselineRequest(runs=5, since=""))
        )
    assert (row["seconds"], row["version"]) == (seconds, "megatron-lm main = 1a2b")


def test_a_baseline_is_the_newest_green_runs_of_a_cell_by_hardware(file: Path) -> None:
    runs = [timed(run_of(day), {"step_busy_s": day / 100}) for day in range(1, 9)]
    runs[2] = timed(run_of(3, "FAIL"), {"step_busy_s": 9.0})
    runs[3] = replace(runs[3], hardware="other x 2")
    record(file, *runs)
    cell = runs[0].cells[0].cell_id
    with opened(file, write=False) as history:

        def found(since: str, runs: int) -> list[tuple[str, str]]:
            requested = BaselineRequest(runs=runs, since=since)
            rows = history.rows(baseline("smoke", [cell, "gone"], "smoke-08", requested))
            return [(row["run_id"], row["hardware"]) for row in rows]

        assert found("", 3) == [
            ("smoke-07", "cpu"),
            ("smoke-06", "cpu"),
            ("smoke-05", "cpu"),
            ("smoke-04", "other x 2"),
        ]
        assert found("2026-08-06", 10) == [("smoke-07", "cpu"), ("smoke-06", "cpu")]
        assert list(history.rows(baseline("other", [cell], "", BaselineRequest(runs=5)))) == []


def test_an_older_file_gets_the_new_tables_and_keeps_its_rows(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(file, run_of(1))
    newer = (*MIGRATIONS, ("ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))
    monkeypatch.setattr(history_module, "MIGRATIONS", newer)
    with opened(file, write=False):
        pass
    assert rows(file, "PRAGMA user_version") == [(len(MIGRATIONS),)]  # a reader does not migrate it
    with opened(file, write=True):
        pass
    assert rows(file, "SELECT run_id, mood FROM runs") == [("smoke-01", "good")]
    assert rows(file, "PRAGMA user_version") == [(len(newer),)]


def test_a_file_in_which_controls_were_called_references_is_migrated(file: Path) -> None:
    record(file, run_of(1))
    with closing(sqlite3.connect(file)) as older:
        older.executescript("UPDATE cells SET role = 'reference'; PRAGMA user_version = 2")
    with opened(file, write=True):
        pass
    assert set(rows(file, "SELECT role FROM cells")) == {("control",)}


def test_a_reader_never_writes_to_a_file_of_another_program(tmp_path: Path) -> None:
    file = tmp_path / "theirs.sqlite"
    for script in ("", "CREATE TABLE notes (x)", "CREATE TABLE runs (x); PRAGMA user_version = 1"):
        file.unlink(missing_ok=True)
        with closing(sqlite3.connect(file)) as other:
            other.executescript(script or "PRAGMA user_version = 0")
        before = file.read_bytes()
        with pytest.raises(InputError, match="is not a history of the harness"), opened(file, write=False):
            pass
        if script:
            with pytest.raises(InputError, match="is not a history of the harness"), opened(file, write=True):
                pass
        assert file.read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == ["theirs.sqlite"]


def test_impossible_dates_and_outcomes_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    with opened(file, write=True) as history:
        for number, started in enumerate(("2026-01-02T03:04:05Z", "yesterday", "2026-02-31T00:00:00Z", "")):
            history.connection.execute(
                """INSERT INTO runs (run_id, matrix, matrix_file, started, verdict, device, hardware, directory)
                VALUES (?, 'm', 'm.yaml', ?, 'pass', 'cpu', 'x', '')""",
                (f"run-{number}", started),
            )
            history.connection.execute("INSERT OR IGNORE INTO series VALUES (1, 'm', 'cell', 'cpu')")
            for place, outcome in enumerate(("PASS", "<b>")):
                history.connection.execute(
                    """INSERT INTO cells (run, series, started, cell_id, role, stack, version, outcome, reason, known,
                    attempts) VALUES (?, 1, ?, ?, 'cell', 'default', '', ?, '', '', 1)""",
                    (number + 1, started, f"c{place}", outcome),
                )
    with opened(file, write=False) as history:
        assert [row["run_id"] for row in history.rows(("SELECT run_id FROM runs", {}))] == ["run-0"]
        assert [row["outcome"] for row in history.rows(("SELECT outcome FROM cells", {}))] == ["PASS"]
        page = render_history(history, Filters(), days=3650, now="2026-03-01T00:00:00Z")
    assert "run-0" in page and "run-1" not in page


@pytest.mark.parametrize(("text", "number"), [("x'fffe00'", "9e999"), ("cast(x'ff41' as text)", "'abc'")])
def test_values_of_any_type_can_be_read_and_shown(file: Path, text: str, number: str) -> None:
    """Every column in turn; what has no meaning there is left out."""
    record(file, run_of(1), timed(run_of(2, "FAIL"), {"step_p50_s": 1.0}))
    whole = file.read_bytes()
    for table in ("runs", "series", "cells", "findings", "metrics"):
        for _, column, kind, *_ in rows(file, f"PRAGMA table_info ({table})"):
            with closing(sqlite3.connect(file, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
                with suppress(sqlite3.DatabaseError):
                    connection.execute(
                        f'UPDATE OR IGNORE {table} SET "{column}" = {text if kind == "TEXT" else number}'
                    )
            with opened(file, write=False) as history:
                for what in LISTINGS:
                    found = list(history.rows(listing(what, Filters(cell="*", since="2026-01-01T00:00:00Z"))))
                    for form in ("csv", "json"):
                        write_table(found, form, file.with_name("table"))
                    columns = list(found[0]) if found else []
                    assert not [row for row in found if not isinstance(row.get("run_id", ""), str)]
                    table_text(found, columns, None)
                render_history(history, Filters(), days=90, now="2026-08-30T00:00:00Z")
                history.cell_histories("smoke", "cpu", "9999")
                history.previous("smoke", "cpu", "9999")
            with opened(file, write=True) as history:
                assert all(isinstance(one, str) for one in history.prune(None, 0, dry_run=True))
            for left in file.parent.glob("history.sqlite*"):
                left.unlink()
            file.write_bytes(whole)


def test_outcomes_are_counted_in_an_index(file: Path) -> None:
    record(file, run_of(1))
    with opened(file, write=False) as history:
        query, values = calendar([1], FIRST_OF_SEPTEMBER)
        plan = " ".join(row["detail"] for row in history.rows((f"EXPLAIN QUERY PLAN {query}", values)))
    assert "COVERING INDEX cells_series" in plan
