"""`harness list` distinguishes finished, interrupted and running runs by a few files."""

from __future__ import annotations

import json
from pathlib import Path

from harness.core.run.run_dir import RunDir
from harness.runs.listing import listing
from harness.runs.lock import only_launcher


def _run(parent: Path, name: str, cells: int, ended: int) -> Path:
    folder = parent / name
    for number in range(cells):
        (folder / "cells" / f"c{number}" / "attempt-1").mkdir(parents=True)
        if number < ended:
            (folder / "cells" / f"c{number}" / "attempt-1" / "result.json").write_text("{}")
    (folder / "plan.json").write_text("{}")
    return folder


PASSED = [{"outcome": "PASS", "lanes": {"numerics": verdict}} for verdict in ("pass", "partial")]


def test_runs_are_listed_by_their_start_with_their_state(tmp_path: Path) -> None:
    _run(tmp_path, "b-20261125T020000Z-0002", cells=3, ended=1)
    finished = _run(tmp_path, "a-20261125T030000Z-0003", cells=2, ended=2)
    report = {"verdict": "pass", "counts": {"PASS": 2, "FAIL": 0}, "cells": PASSED}
    (finished / "report.json").write_text(json.dumps(report))
    (tmp_path / "no-run").mkdir()
    running = RunDir(_run(tmp_path, "a-20261125T040000Z-0004", cells=1, ended=0))
    with only_launcher(running):
        found = [(run.run_id, run.state, run.text) for run in listing(tmp_path)]
    assert found == [
        ("b-20261125T020000Z-0002", "interrupted", "1 of 3 cells have ended"),
        ("a-20261125T030000Z-0003", "finished", "PASS: 2 PASS (1 in part)"),
        ("a-20261125T040000Z-0004", "running", "0 of 1 cells have ended"),
    ]


def test_a_report_that_cannot_be_read_does_not_hide_the_run(tmp_path: Path) -> None:
    (_run(tmp_path, "a-20261125T030000Z-0003", cells=1, ended=1) / "report.json").write_text("[")
    assert [run.state for run in listing(tmp_path)] == ["interrupted"]


def test_no_folder_has_no_runs(tmp_path: Path) -> None:
    assert listing(tmp_path / "none") == []
