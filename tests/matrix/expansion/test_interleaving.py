"""Interleaved cells: pairs that differ only in the stack."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.campaign.selection import select
from harness.core.cell.identity import cell_id
from harness.core.errors import InputError
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.launch.allocations import plan_allocations
from tests.matrix.helpers import expand_axes


def planned(
    stacks: Sequence[str] = ("old", "new"), base: str = "old", packing: Sequence[str] = ("reference", "unpacked")
) -> list[PlannedCell]:
    found = expand_axes(
        {"tp": [1, 2], "packing": list(packing), "stack": list(stacks)},
        stacks={name: {"packages": ["megatron-core"]} for name in stacks},
        checks={"throughput": {"slower_than": base}},
    )
    return list(found.cells)


def test_cells_that_differ_only_in_the_stack_are_paired_and_the_base_goes_first() -> None:
    cells = {cell.id: cell for cell in planned()}
    compared = [cell for cell in cells.values() if cell.base]
    assert [cell.config.stack for cell in compared] == ["new"] * 4
    for cell in compared:
        base = cells[cell.base or ""]
        assert base.config.stack == "old"
        assert (base.config.layout, base.config.data_path) == (cell.config.layout, cell.config.data_path)
        assert (base.config.timing.turns, base.config.timing.first) == (cell.config.timing.turns, True)
        assert not cell.config.timing.first
    assert len({cell.config.timing.turns for cell in compared}) == 4


def test_the_partner_of_a_cell_is_not_part_of_its_id() -> None:
    for cell in planned():
        assert cell.id == cell_id(cell.config)


def test_added_controls_are_not_paired() -> None:
    added = [cell for cell in planned(packing=["reference"]) if cell.role == "control"]
    assert len(added) == 2
    assert not any(cell.config.timing.timed or cell.base for cell in added)


def test_picking_a_cell_picks_its_base_and_the_controls_of_both() -> None:
    cells = planned(packing=["reference"])
    [one] = [cell for cell in cells if cell.base and cell.config.layout.tp == 1]
    picked = select(Expansion(cells=tuple(cells), rejected=()), [one.id]).cells
    [base] = [cell for cell in cells if cell.id == one.base]
    assert {cell.id for cell in picked} == {one.id, base.id, one.control, base.control}


def test_both_allocations_hold_the_pairs_in_the_same_order() -> None:
    cells = planned()
    old, new = plan_allocations(Expansion(cells=tuple(cells), rejected=()))
    assert old.interleaved and new.interleaved
    turns = {cell.id: cell.config.timing.turns for cell in cells}
    assert [turns[cell] for cell in old.cells] == [turns[cell] for cell in new.cells]


@pytest.mark.parametrize(
    ("stacks", "base", "message"),
    [
        (["old", "new"], "older", "no cell runs in this stack"),
        (["old", "new", "third"], "old", "interleaving needs two stacks, and the axis 'stack' has 3"),
        (["old"], "old", "interleaving needs two stacks, and the axis 'stack' has 1"),
    ],
)
def test_interleaving_other_than_two_stacks_is_an_error(stacks: list[str], base: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(stacks, base)
    (problem,) = caught.value.problems
    assert problem.message == message
    assert problem.key == "checks.throughput.slower_than.stack"
