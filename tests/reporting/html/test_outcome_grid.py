from __future__ import annotations

from dataclasses import replace

from harness.core.outcomes import Outcome
from harness.reporting.html.report import outcome_grids
from tests.sample_report import big_report, passing_report, sample_report


def test_grid_rows_are_layouts_in_order_of_size_and_columns_are_data_paths() -> None:
    (grid,) = outcome_grids(sample_report())
    assert (grid.title, grid.corner) == ("", "layout")
    assert grid.columns == ["reference", "sft", "unpacked"]  # controls last
    rows = [row for row, _ in grid.rows]
    assert rows[0] == "tp1-pp1-cp1" and rows[-1] == "tp8-pp1-cp1"
    assert "tp1-pp2-cp1-mbs2" in rows and "tp1-pp2-cp1-vpp2" in rows
    square = dict(grid.rows)["tp2-pp1-cp2"][1]
    assert [(chip.outcome, chip.note) for chip in square] == [(Outcome.REJECTED, "cp-alignment")]
    assert "62 % (2 * cp) = 62 % 4 = 2" in square[0].title


def test_grid_shows_further_axes_only_where_the_matrix_varies_them() -> None:
    names = [row for row, _ in outcome_grids(big_report(40))[0].rows]
    assert "tp2-pp2-cp2" in names and "tp2-pp2-cp2-bf16" in names  # fp32 is the most frequent value here


def test_several_stacks_have_a_grid_per_data_path_with_the_longer_side_as_rows() -> None:
    report = big_report(40)
    grids = outcome_grids(report)
    assert [(grid.title, grid.corner, grid.columns) for grid in grids] == [
        ("reference", "layout", ["core-0", "core-1"]),
        ("sft", "layout", ["core-0", "core-1"]),
    ]
    assert sum(len(chips) for grid in grids for _, squares in grid.rows for chips in squares) == 40
    one_layout = [cell for cell in report.cells if cell.layout == report.cells[0].layout][:1]
    names = ("new", "old", "older")
    on_stacks = [replace(cell, axes={**cell.axes, "stack": name}) for name in names for cell in one_layout]
    (grid,) = outcome_grids(replace(report, cells=on_stacks))
    assert (grid.corner, [row for row, _ in grid.rows], len(grid.columns)) == ("stack", list(names), 1)


def test_an_axis_without_a_label_is_shown_as_name_and_value() -> None:
    report = passing_report()
    odd = replace(report.cells[1], axes={**report.cells[1].axes, "pad_seq_to_mult": 1})
    rest = [
        replace(cell, axes={**cell.axes, "pad_seq_to_mult": "auto"}) for cell in [report.cells[0], *report.cells[2:]]
    ]
    assert [row for row, _ in outcome_grids(replace(report, cells=[*rest, odd]))[0].rows] == [
        "tp1-pp1-cp1",
        "tp1-pp1-cp1-pad_seq_to_mult=1",
        "tp2-pp1-cp1",
    ]
