"""The page of the history: its sentence, and links to the reports of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.history.database import opened
from harness.history.page import render_history
from harness.history.queries import Filters
from harness.history.trends import run_row
from tests.reporting.html.test_report import Page
from tests.sample_report import sample_report


def page_of(folder: Path, days: list[str]) -> Page:
    """The page of a history with one run on each day, in `folder`."""
    row = run_row(sample_report())
    with opened(folder / "history.sqlite", write=True) as history:
        for day in days:
            history.record(
                replace(row, run_id=f"run-{day}", started=f"{day}T10:00:00Z"), folder / "gone" / f"run-{day}"
            )
        return Page(render_history(history, Filters(), days=90, now="2026-09-01T00:00:00Z", folder=folder))


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (["2026-08-20"], "1 run of 1 matrix on 2026-08-20."),
        (["2026-08-20", "2026-08-22"], "2 runs of 1 matrix from 2026-08-20 to 2026-08-22."),
        (["2026-01-01"], "No runs from 2026-06-03 to 2026-09-01."),
    ],
)
def test_the_page_says_how_many_runs_it_shows_and_of_which_days(tmp_path: Path, days: list[str], said: str) -> None:
    assert said in page_of(tmp_path, days).text


def test_runs_link_their_reports_beside_the_page_and_where_they_were_recorded(tmp_path: Path) -> None:
    for place in ("run-2026-08-20", "gone/run-2026-08-21"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "report.html").touch()
    (tmp_path / "index.html").touch()
    page = page_of(tmp_path, ["2026-08-20", "2026-08-21", "2026-08-22"])
    found = {link for link in page.links if not link.startswith("#")}
    assert found == {"run-2026-08-20/report.html", "gone/run-2026-08-21/report.html", "index.html"}
