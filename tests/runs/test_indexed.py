"""The index reads finished, unfinished and unreadable runs, and knows since when a matrix is red."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.runs.listing import FailingCell, IndexedRun, indexed_runs, matrices


def run(folder: Path, name: str, report: Any = None, *, planned: bool = True) -> None:
    (folder / name).mkdir()
    if planned:
        (folder / name / "plan.json").write_text("{}")
    if report is not None:
        (folder / name / "report.json").write_text(report if isinstance(report, str) else json.dumps(report))


def finished(number: int, verdict: str) -> IndexedRun:
    return IndexedRun(run_id=f"m-{number}", matrix="m", started=str(number), state="finished", verdict=verdict)


def test_runs_of_every_state_are_listed_newest_first(tmp_path: Path) -> None:
    failing = [
        {"id": "e", "outcome": "ERROR", "reason": "lost", "findings": []},
        {"id": "f", "outcome": "FAIL", "findings": [{"message": "wrong"}]},
        {"id": "p", "outcome": "PASS", "findings": []},
    ]
    report = {"verdict": "fail", "counts": {"FAIL": 1, "PASS": 1}, "matrix": "m", "timing": {"wall_s": 2.5}}
    run(tmp_path, "m-20261125T010000Z-0001", report | {"cells": failing}, planned=False)
    run(tmp_path, "smoke-20261125T020000Z-0002")
    run(tmp_path, "smoke-20261125T030000Z-0003", "[")
    (tmp_path / "m-20261125T010000Z-0001" / "report.html").touch()
    (tmp_path / "not a run").mkdir()
    last, middle, first = indexed_runs(tmp_path)
    assert (last.matrix, last.label, last.when) == ("smoke", "unreadable", "2026-11-25 03:00")
    assert (middle.label, middle.text) == ("interrupted", "0 of 0 cells have ended")
    assert (first.label, first.wall_s, first.has_page, first.files) == ("fail", 2.5, True, ["report.json"])
    assert first.failing == [FailingCell(id="f", message="wrong"), FailingCell(id="e", message="lost")]


@pytest.mark.parametrize("cells", [None, 3, [1, "a", {}], [{"outcome": "FAIL", "findings": [7]}]])
def test_a_report_with_parts_of_another_shape_is_shown_as_far_as_it_goes(tmp_path: Path, cells: Any) -> None:
    run(tmp_path, "renamed", {"verdict": "fail", "counts": {"FAIL": 1}, "cells": cells, "timing": {"wall_s": "x"}})
    (found,) = indexed_runs(tmp_path)
    assert (found.matrix, found.when, found.wall_s, found.label) == ("renamed", "", None, "fail")


@pytest.mark.parametrize(
    ("verdicts", "red_since", "last_green"),
    [
        (["pass", "fail"], None, "m-0"),
        (["fail", "fail", "pass"], "m-1", "m-2"),
        (["fail", "error", "fail", "pass", "fail"], "m-2", "m-3"),
        (["error", "pass"], None, "m-1"),
        (["fail"], "m-0", None),
        (["error"], None, None),
    ],
)
def test_since_when_a_matrix_is_red(verdicts: list[str], red_since: str | None, last_green: str | None) -> None:
    (matrix,) = matrices([finished(number, verdict) for number, verdict in enumerate(verdicts)])
    assert (matrix.red_since and matrix.red_since.run_id) == red_since
    assert (matrix.last_green and matrix.last_green.run_id) == last_green
    assert (matrix.runs, matrix.last.run_id) == (len(verdicts), "m-0")


def test_runs_that_did_not_finish_decide_nothing_about_a_matrix() -> None:
    assert matrices([IndexedRun(run_id="x", matrix="m", started="", state="interrupted")]) == []
