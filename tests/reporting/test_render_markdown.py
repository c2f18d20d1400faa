from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.core.run.report import Report
from harness.core.tolerances import NoiseFloor
from harness.reporting.render_markdown import MAX_BYTES, code, render_markdown, text


def test_the_whole_file(broken_report: Report, golden: Callable[[str, str], None]) -> None:
    golden("report.md", render_markdown(broken_report))


def test_verdict_and_counts_come_first(broken_report: Report) -> None:
    lines = render_markdown(broken_report).splitlines()
    assert lines[0] == "# FAIL: smoke"
    assert lines[2].startswith("2 PASS, 3 FAIL, 1 XFAIL, 2 REJECTED, 1 ERROR in 12.2 s.")


def test_failures_of_one_class_are_grouped(broken_report: Report) -> None:
    failing = next(cell for cell in broken_report.cells if cell.outcome.value == "FAIL")
    report = replace(broken_report, cells=[failing, broken_report.cells[0], replace(failing, id="second")])
    shown = render_markdown(report)
    assert "### A metadata: middle stages without cu\\_seqlens (2 cells)".replace("\\_", "_") in shown


def test_a_huge_report_is_cut_with_a_note(broken_report: Report) -> None:
    failing = next(cell for cell in broken_report.cells if cell.outcome.value == "FAIL")
    cells = [replace(failing, id=f"cell-{number}") for number in range(4000)]
    shown = render_markdown(replace(broken_report, cells=cells))
    assert len(shown.encode()) < 1024 * 1024
    assert len(shown.encode()) > MAX_BYTES - 4096
    assert "more lines. report.json has everything." in shown.splitlines()[-1]


def test_text_cannot_break_out() -> None:
    assert (
        text("a|b `c` *d* [e](f) <g> & \\ \n\x1b h")
        == "a\\|b \\`c\\` \\*d\\* \\[e\\](f) &lt;g&gt; &amp; \\\\ \\\\x1b h"
    )
    assert code("a`b\nc") == "``a`b c``"
    assert text("x" * 5000) == f"{'x' * 600} … (4400 more characters)"


def test_hostile_axes_keep_the_table_whole(broken_report: Report) -> None:
    cells = [replace(cell, axes={**cell.axes, "packing": "a|b"}) for cell in broken_report.cells]
    lines = render_markdown(replace(broken_report, cells=cells)).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| layout"))
    end = lines.index("", start)
    bars = {line.replace("\\|", "").count("|") for line in lines[start:end]}
    assert len(bars) == 1


def test_canaries_are_counted_and_noise_is_shown(broken_report: Report) -> None:
    first, *rest = broken_report.cells
    cells = [replace(first, canaries={"order": "documents do not share rows"})]
    cells += [replace(cell, canaries={"order": "ran"}) for cell in rest]
    noise = {first.id: {"step_loss": NoiseFloor(value=1.25e-3, by="weights moved by one machine epsilon")}}
    lines = render_markdown(replace(broken_report, cells=cells, noise=noise)).splitlines()
    assert lines[lines.index("## Canaries") + 4 :][:2] == [
        f"| order | ran | {len(rest)} |",
        "| order | documents do not share rows | 1 |",
    ]
    assert lines[-1] == f"| {first.id} | step_loss | 0.00125 | weights moved by one machine epsilon |"
