from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.layout import Layout
from harness.core.outcomes import Outcome
from harness.core.run.report import RankView
from harness.reporting.html.details import rank_picture
from tests.sample_report import sample_report


def test_the_rank_picture_is_stage_by_tp_with_equal_letters_for_equal_values() -> None:
    cell = next(cell for cell in sample_report().cells if cell.outcome is Outcome.FAIL)
    picture = rank_picture(cell, 100)
    (plane,) = picture.planes
    assert plane.columns == [0, 1] and [row[0] for row in plane.rows] == [f"stage {stage}" for stage in range(4)]
    words = [[square.word if square else None for square in row[2]] for row in plane.rows]
    assert words == [["ok", "ok"], ["ok", "missing"], ["ok", "missing"], ["ok", "ok"]]
    assert [value.letter for value in picture.values] == ["A"] and picture.values[0].ranks == 6
    assert picture.values[0].text == f"cu_seqlens {cell.ranks[0].cu_seqlens}"
    assert sum(width for _, width in picture.values[0].segments) == pytest.approx(100, abs=0.1)


def test_a_different_value_gets_its_own_letter() -> None:
    cell = next(cell for cell in sample_report().cells if cell.outcome is Outcome.XFAIL)
    picture = rank_picture(cell, 100)
    assert {value.max_seqlen for value in picture.values} == {cell.ranks[0].max_seqlen, -1093}
    assert [plane.title for plane in picture.planes] == ["dp 0, cp 0", "dp 0, cp 1"]


def test_a_large_layout_draws_bad_ranks_first_and_notes_the_omitted_ones() -> None:
    layout = Layout(tp=8, pp=8, cp=8)
    views = [
        RankView(rank=rank, place=layout.coordinates(rank), state="ok", cu_seqlens=[0, 8], max_seqlen=8)
        for rank in range(layout.world_size)
    ]
    views[500] = replace(views[500], state="missing", cu_seqlens=None, max_seqlen=None)
    cell = replace(sample_report().cells[0], layout=layout, ranks=views)
    picture = rank_picture(cell, 160)
    assert picture.squares == 128
    drawn = [square for plane in picture.planes for row in plane.rows for square in row[2] if square]
    assert any(square.view.rank == 500 for square in drawn)
    assert picture.left_out.startswith("384 more ranks are omitted") and "all of them are ok" in picture.left_out


@pytest.mark.parametrize("garbage", [[], [0], [5, 1], [0, 7, 3], [-4, 8], [0, 0]])
def test_a_malformed_cu_seqlens_is_written_but_not_drawn(garbage: list[int]) -> None:
    cell = sample_report().cells[1]
    picture = rank_picture(replace(cell, ranks=[replace(cell.ranks[0], cu_seqlens=garbage, state="differs")]), 10)
    assert picture.values[0].text == f"cu_seqlens {garbage}" and picture.values[0].segments == []
