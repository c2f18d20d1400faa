"""The comparison page, and the report's section "Since the previous run", in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from harness.core.run.report import CellSince, ChangeKind, Report, Since
from harness.reporting.compare.runs import compare_runs
from harness.reporting.html.compare import render_comparison_html
from harness.reporting.html.report import render_html
from tests.browser.test_report_in_browser import BROKEN_LINKS, LOW_CONTRAST, OPEN_ALL, VIEWS, open_view
from tests.sample_report import HOSTILE, hostile_report, passing_report, sample_report
from tests.two_runs import NEW, OLD, earlier_report, in_stack, later_report

pytestmark = pytest.mark.browser


def with_since() -> Report:
    """The sample report with a section "Since the previous run" that has every kind of change."""
    report = sample_report()
    moved = ["megatron-lm 5e4fc931ba..d30e165203, 312 commits", "torch 2.9.0 -> 2.9.1"]
    changes = (ChangeKind.NEWLY_FAILING, ChangeKind.STILL_FAILING, ChangeKind.FIXED, ChangeKind.UNJUDGED)
    cells = [
        CellSince(
            id=cell.id,
            change=change,
            since="2026-08-22T10:15:30Z",
            since_run="smoke-20260822T101530Z-3f2a",
            good="" if change is ChangeKind.UNJUDGED else "2026-08-21T10:15:30Z",
            good_run="" if change is ChangeKind.UNJUDGED else "smoke-20260821T101530Z-11aa",
            between={ChangeKind.NEWLY_FAILING: moved, ChangeKind.FIXED: [HOSTILE]}.get(change, []),
        )
        for cell, change in zip(report.cells[7:], changes)
    ]
    since = Since(run_id="smoke-20260821T101530Z-11aa", started="2026-08-21T10:15:30Z", cells=cells)
    return replace(report, since=since)


PAGES = {
    "regression": lambda: render_comparison_html(compare_runs(earlier_report(), later_report())),
    "same": lambda: render_comparison_html(compare_runs(passing_report(), passing_report())),
    "hostile": lambda: render_comparison_html(compare_runs(earlier_report(), hostile_report())),
    "moved": lambda: render_comparison_html(
        compare_runs(in_stack(sample_report(), OLD, torch="2.9.0"), in_stack(sample_report(), NEW, torch="2.9.1"))
    ),
    "since": lambda: render_html(with_since()),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, render in PAGES.items():
        (folder / f"{name}.html").write_text(render(), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize(("scheme", "width"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_renders_cleanly(browser: Browser, files: dict[str, Path], name: str, scheme: str, width: int) -> None:
    view = open_view(browser, files[name], scheme, width)
    for _ in ("folded", "unfolded"):
        assert view.overflow() <= 0
        contrast = view.page.evaluate(LOW_CONTRAST)
        assert contrast["low"] == []
        assert contrast["seen"] > 20
        view.page.evaluate(OPEN_ALL)
    assert view.page.evaluate(BROKEN_LINKS) == []
    assert view.complaints == []
    view.page.context.close()


def test_the_page_leads_with_the_verdict_and_the_first_place_that_differs(
    browser: Browser, files: dict[str, Path]
) -> None:
    view = open_view(browser, files["regression"])
    assert view.page.inner_text("h1") == "✕ Regression"
    first = view.page.locator("details.cell").first
    assert "tp2-pp4-cp1-sft" in first.inner_text()
    assert "stage 1" in first.inner_text()
    assert "megatron-core" in view.page.inner_text("#stacks")
    view.page.context.close()


def test_the_report_says_since_when_and_which_versions_changed(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["since"])
    row = view.page.locator("#since tbody tr").first
    assert "newly failing" in row.inner_text()
    assert "megatron-lm 5e4fc931ba..d30e165203, 312 commits" in row.inner_text()
    row.locator("a").click()
    cell = view.page.locator("details.cell").first.get_attribute("id")
    view.page.wait_for_url(lambda url: url.endswith(f"#{cell}"))
    view.page.context.close()


@pytest.mark.parametrize("name", ["regression", "hostile"])
def test_details_of_changes_are_in_sight_on_a_phone(browser: Browser, files: dict[str, Path], name: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(files[name].as_uri())
    boxes = [cell.bounding_box() for cell in page.locator(".rows td").all()]
    seen = [box for box in boxes if box is not None]  # empty cells are not drawn
    assert seen
    assert [box for box in seen if box["x"] + box["width"] > 390] == []
    page.close()
