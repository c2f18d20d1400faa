"""The page of the history in a real browser: light and dark, wide and narrow."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from harness.history.database import opened
from harness.history.page import render_history
from harness.history.queries import Filters
from harness.history.trends import run_row
from tests.browser.test_report_in_browser import BROKEN_LINKS, EMPTY_DRAWINGS, LOW_CONTRAST, OPEN_ALL, VIEWS, open_view
from tests.sample_report import HOSTILE, sample_report

pytestmark = pytest.mark.browser
DAYS = 40


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty nights of the sample report, with every outcome, a new version every ten days and hostile text."""
    folder, chance, row = tmp_path_factory.mktemp("history"), random.Random(3), run_row(sample_report())
    with opened(folder / "history.sqlite", write=True) as history:
        for day in range(DAYS):
            started = f"2026-{7 + day // 28:02d}-{day % 28 + 1:02d}T03:00:00Z"
            cells = tuple(
                replace(
                    cell,
                    version=f"megatron-lm main = {day // 10:012x}" if number else HOSTILE,
                    outcome=chance.choice([cell.outcome] * 8 + ["FAIL", "FLAKY", "ERROR"]),
                    metrics={name: value * chance.uniform(0.9, 1.1) for name, value in cell.metrics.items()},
                    reason=HOSTILE,
                )
                for number, cell in enumerate(row.cells)
                if day % 9 or number % 2
            )
            history.record(replace(row, run_id=f"smoke-{day}", started=started, cells=cells), folder)
        html = render_history(history, Filters(), days=90, now="2026-08-20T00:00:00Z")
    path = folder / "history.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.mark.parametrize(("scheme", "width"), VIEWS)
def test_the_page_renders_cleanly_folded_and_unfolded(browser: Browser, page: Path, scheme: str, width: int) -> None:
    view = open_view(browser, page, scheme, width)
    for _ in ("folded", "unfolded"):
        assert view.overflow() <= 0
        assert view.page.evaluate(EMPTY_DRAWINGS) == 0
        contrast = view.page.evaluate(LOW_CONTRAST)
        assert contrast["low"] == [] and contrast["seen"] > 100
        view.page.evaluate(OPEN_ALL)
    assert view.page.evaluate(BROKEN_LINKS) == []
    assert view.complaints == []
    view.page.context.close()


def test_the_newest_day_is_visible_and_each_day_has_its_outcome_as_text(browser: Browser, page: Path) -> None:
    view = open_view(browser, page, width=380)
    days = view.page.locator(".calendar tbody tr").first.locator("td")
    assert days.count() >= DAYS
    box = days.last.bounding_box()
    assert box is not None and 0 < box["x"] < 380
    titles = [days.nth(index).get_attribute("title") or "" for index in range(days.count())]
    assert all(": " in title for title in titles)
    assert any("flaky x 1" in title or "fail x 1" in title or "pass x 1" in title for title in titles)
    assert view.page.locator(".trend title").count() > 3 * DAYS
    view.page.context.close()
