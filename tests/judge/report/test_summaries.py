from __future__ import annotations

from dataclasses import replace

from harness.judge.report.model import Report
from harness.judge.report.summaries import CanaryCount, canary_counts


def test_canaries_are_in_matrix_order_and_results_by_frequency(broken_report: Report) -> None:
    results = [{"padding": "did not end", "order": "ran"}, {"padding": "ran"}, {"padding": "ran", "order": "ran"}]
    cells = [replace(broken_report.cells[0], canaries=result) for result in results]
    assert canary_counts(replace(broken_report, cells=cells)) == [
        CanaryCount("padding", "ran", 2),
        CanaryCount("padding", "did not end", 1),
        CanaryCount("order", "ran", 2),
    ]


def test_without_canaries_there_are_no_counts(broken_report: Report) -> None:
    cells = [replace(cell, canaries={}) for cell in broken_report.cells]
    assert canary_counts(replace(broken_report, cells=cells)) == []
