from __future__ import annotations

from dataclasses import replace

from harness.judge.report.model import Report
from harness.judge.report.summaries import CanaryCount, canary_counts


def test_the_matrix_gives_the_order_of_canaries_and_their_number_that_of_ways(broken_report: Report) -> None:
    ways = [{"padding": "did not end", "order": "ran"}, {"padding": "ran"}, {"padding": "ran", "order": "ran"}]
    cells = [replace(broken_report.cells[0], canaries=way) for way in ways]
    assert canary_counts(replace(broken_report, cells=cells)) == [
        CanaryCount("padding", "ran", 2),
        CanaryCount("padding", "did not end", 1),
        CanaryCount("order", "ran", 2),
    ]


def test_no_canaries_no_lines(broken_report: Report) -> None:
    cells = [replace(cell, canaries={}) for cell in broken_report.cells]
    assert canary_counts(replace(broken_report, cells=cells)) == []
