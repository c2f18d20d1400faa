from __future__ import annotations

from typing import Any

from harness.history.trends import calendar_rows, days_between, points


def test_days_go_over_the_end_of_a_month() -> None:
    assert days_between("2026-02-27", "2026-03-01") == ["2026-02-27", "2026-02-28", "2026-03-01"]


def test_a_day_shows_its_worst_outcome_and_counts_all() -> None:
    rows = [
        {"series": 3, "day": "2026-08-02", "outcome": outcome, "times": times}
        for outcome, times in (("PASS", 4), ("FLAKY", 1), ("ERROR", 2))
    ]
    quiet, busy = calendar_rows(rows, ["2026-08-01", "2026-08-02"])[3]
    assert (quiet.outcome, quiet.times) == ("", {})
    assert (busy.outcome, busy.times) == ("ERROR", {"PASS": 4, "FLAKY": 1, "ERROR": 2})


def _row(started: str, version: str) -> dict[str, Any]:
    texts = dict.fromkeys(("run_id", "harness_commit", "hardware", "outcome", "reason"), "x")
    return {**texts, "started": started, "version": version, "step_p50_s": 1.0, "tokens_per_s": 2.0, "loss_drift": None}


def test_points_are_in_order_of_time_and_mark_where_a_version_begins() -> None:
    found = points([_row("3", "b"), _row("2", "b"), _row("1", "a")])
    assert [(point.started, point.new_version) for point in found] == [("1", False), ("2", True), ("3", False)]
    assert points([]) == []
