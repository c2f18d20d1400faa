from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from harness.reporting.compare.render import comparison_lines, render_comparison_json, render_comparison_markdown
from harness.reporting.compare.runs import compare_runs
from tests.sample_report import hostile_report, passing_report
from tests.two_runs import earlier_report, later_report


def test_the_whole_page(golden: Callable[[str, str], None]) -> None:
    golden("compare.md", render_comparison_markdown(compare_runs(earlier_report(), later_report())))


def test_the_terminal_ends_with_the_verdict_and_the_exit_code() -> None:
    lines = [text for text, _ in comparison_lines(compare_runs(earlier_report(), later_report()))]
    assert lines[-1].startswith("REGRESSION: 1 newly failing, ")
    assert lines[-1].endswith("exit code 1")
    assert "  default: megatron-core 0.19.1 -> 0.19.2" in lines
    same = [text for text, _ in comparison_lines(compare_runs(passing_report(), passing_report()))]
    assert same[-1] == "NO REGRESSION: 4 unchanged; exit code 0"
    assert "  loss and gradient norm are equal, bit for bit, in 4 of 4 cells" in same


def test_a_long_group_is_cut_on_a_terminal() -> None:
    report = passing_report()
    many = [replace(report.cells[0], id=f"cell-{number}") for number in range(40)]
    lines = [text for text, _ in comparison_lines(compare_runs(report, replace(report, cells=many)))]
    assert "  and 28 more in compare.md" in lines


def test_json_holds_every_number_and_no_nan() -> None:
    comparison = compare_runs(earlier_report(), later_report())
    value = json.loads(render_comparison_json(comparison))
    assert value["schema_version"] == 1
    assert value["verdict"] == comparison.verdict
    assert {cell["id"] for cell in value["cells"]} == {cell.id for cell in comparison.cells}
    assert value["stacks"][0]["differences"][0] == {
        "what": "megatron-core",
        "before": "0.19.1",
        "after": "0.19.2",
        "commits": "",
    }


def test_hostile_text_stays_text() -> None:
    page = render_comparison_markdown(compare_runs(earlier_report(), hostile_report()))
    assert "<script>" not in page
    assert "\x1b" not in page
