from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.resume import checked, resumed_layout, split_for_both
from harness.core.cell.timing import TimingConfig
from harness.core.packing.documents import DocumentsConfig

CELL = CellConfig(
    layout=Layout(tp=2, pp=2, sp=True),
    data_path="sft",
    trainer="megatron",
    documents=DocumentsConfig(lengths=(16, 8, 24)),
)


@pytest.mark.parametrize("value", ["", "same", "tp1", "pp4-tp1", "tp2-pp1-cp2-vpp1"])
def test_a_value_is_same_or_sizes(value: str) -> None:
    assert checked(value) == value


@pytest.mark.parametrize("value", ["other", "tp", "tp0", "dp2", "tp1 pp2", "tp1-tp2", "tp1-", "Same", "tp12345"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(
        ValueError, match=r"must be same, or sizes of tp, pp, cp, vpp such as tp1-pp4, each at most once"
    ):
        checked(value)


@pytest.mark.parametrize(
    ("value", "layout", "found"),
    [
        ("same", Layout(tp=2, pp=2, sp=True), Layout(tp=2, pp=2, sp=True)),
        ("tp1-pp4", Layout(tp=2, pp=2, sp=True), Layout(pp=4)),
        ("tp1", Layout(tp=2, pp=2, sp=True), Layout(pp=2, dp=2)),  # ranks that are left over become replicas
        ("tp2", Layout(dp=2), Layout(tp=2, sp=True)),
        ("tp4-pp1", Layout(tp=2, pp=2), Layout(tp=4)),  # without sequence parallel, as before
        ("vpp1", Layout(pp=2, vpp=2), Layout(pp=2)),
    ],
)
def test_sizes_that_are_not_named_stay_and_replicas_follow(value: str, layout: Layout, found: Layout) -> None:
    assert resumed_layout(value, layout) == found
    assert found.world_size == layout.world_size


def test_ranks_that_cannot_be_split_so_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^4 ranks are not divisible by tp x pp x cp = 3$"):
        resumed_layout("tp3-pp1", Layout(tp=2, pp=2))


@pytest.mark.parametrize(
    ("layout", "other", "dp"),
    [
        (Layout(), Layout(), 1),
        (Layout(dp=2), Layout(dp=3), 6),
        (Layout(pp=2, vpp=2), Layout(pp=4), 1),
        (Layout(pp=4), Layout(pp=2, vpp=2, dp=2), 4),  # interleaved stages need as many micro-batches
        (Layout(pp=2, vpp=2, dp=3), Layout(dp=4), 6),
    ],
)
def test_rows_are_split_for_the_replicas_of_both_layouts(layout: Layout, other: Layout, dp: int) -> None:
    assert split_for_both(layout, other) == replace(layout, dp=dp)


def test_the_resumed_part_trains_the_later_steps_and_nothing_else() -> None:
    train = TrainConfig(steps=3, save_step=2)
    cell = replace(CELL, resume="tp1", train=train, canaries=("order",), timing=TimingConfig(unpacked=True))
    later = cell.resumed
    assert (later.layout, later.saved_in) == (Layout(pp=2, dp=2), CELL.layout)
    assert (later.begins, list(later.steps)) == (2, [2])
    assert (cell.begins, list(cell.steps)) == (0, [0, 1, 2])
    assert (later.resume, later.canaries, later.fingerprints, later.timing.timed) == ("", (), False, False)
    assert [later.micro_batches(2)[dp] for dp in (0, 1)] == [cell.micro_batches(2)[0][dp::2] for dp in (0, 1)]


@pytest.mark.parametrize(("resume", "stored"), [("", ()), ("same", (1, 3)), ("tp1", (1,)), ("tp2", (1, 3))])
def test_the_state_is_recorded_when_saved_and_at_the_end_if_it_must_be_the_same(
    resume: str, stored: tuple[int, ...]
) -> None:
    cell = replace(CELL, resume=resume)
    assert cell.stored == stored
    if resume:
        assert cell.resumed.stored == stored


def test_a_layout_that_is_impossible_leaves_the_rows_alone() -> None:
    assert replace(CELL, resume="tp3-pp1").row_layout == CELL.layout
