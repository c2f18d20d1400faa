"""The page of a comparison links the reports of both runs."""

from __future__ import annotations

from pathlib import Path

from harness.reporting.compare.runs import compare_runs
from harness.reporting.html.compare import render_comparison_html
from tests.reporting.html.test_report import Page
from tests.two_runs import earlier_report, later_report


def test_both_reports_and_the_cells_in_them_are_linked(tmp_path: Path) -> None:
    comparison = compare_runs(earlier_report(), later_report())
    for name in ("earlier", "later"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").touch()
    page = Page(render_comparison_html(comparison, tmp_path / "later", tmp_path / "earlier"))
    links = [link for link in page.links if not link.startswith("#")]
    assert {"report.html", "../earlier/report.html"} <= set(links)
    (regressed, *_) = comparison.regressions
    assert f"report.html#cell-{regressed.id}" in links


def test_without_reports_nothing_is_linked(tmp_path: Path) -> None:
    comparison = compare_runs(earlier_report(), later_report())
    for html in (render_comparison_html(comparison), render_comparison_html(comparison, tmp_path, tmp_path)):
        assert [link for link in Page(html).links if not link.startswith("#")] == []
