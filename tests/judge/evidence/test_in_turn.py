from __future__ import annotations

import weakref
from dataclasses import replace

from harness.core.run.run_plan import Allocation, Expansion, RunPlan
from harness.judge.evidence.in_turn import CellFound, evidence_in_turn
from tests.judge.simulator import config_of, found_of, run_of


def test_every_attempt_and_part_of_a_cell_knows_over_how_many_nodes_it_ran() -> None:
    plan, _ = run_of([replace(config_of("sft", tp=2, pp=2), trainer="megatron", resume="tp1-pp4")])
    cells = {cell.role: cell.id for cell in plan.expansion.cells}
    wide = Allocation(name="a", array="a", cells=(cells["cell"],), nodes=2)
    found = CellFound(resumed=CellFound(), earlier=[CellFound(resumed=CellFound())])
    evidence = {
        item.cell.role: item for item in evidence_in_turn(replace(plan, allocations=(wide,)), lambda cell: found)
    }
    (earlier,) = evidence["cell"].earlier
    assert earlier.resumed is not None and evidence["cell"].resumed is not None
    parts = (evidence["cell"], evidence["cell"].resumed, earlier, earlier.resumed)
    assert [part.nodes for part in parts] == [2] * 4
    assert [item.nodes for role, item in evidence.items() if role != "cell"] == [1]


def two_groups() -> RunPlan:
    """Two controls, each with two cells, in an order in which the groups alternate."""
    plan, _ = run_of([config_of(tp=2), config_of(pp=2)])
    control, first, second = plan.expansion.cells
    groups = []
    for name in ("a", "b"):
        cells = [replace(cell, id=f"{cell.id}-{name}", control=f"control-{name}") for cell in (first, second)]
        groups.append([replace(control, id=f"control-{name}"), *cells])
    ordered = tuple(cell for both in zip(*groups) for cell in reversed(both))
    return replace(plan, expansion=Expansion(cells=ordered, rejected=()))


def test_cells_of_one_control_follow_it_together() -> None:
    names = [cell.id.rpartition("-") for cell in two_groups().expansion.controls_first]
    assert [group for _, _, group in names] == ["b", "b", "b", "a", "a", "a"]
    assert [name for name, _, _ in names[::3]] == ["control", "control"]


def test_a_control_is_let_go_after_its_last_cell() -> None:
    plan = two_groups()
    known = {cell.id: cell for cell in plan.expansion.cells}
    controls = []
    for evidence in evidence_in_turn(plan, lambda cell: found_of(known[cell])):
        if evidence.cell.role == "control":
            controls.append(weakref.ref(evidence))
        alive = [control() is not None for control in controls]
    del evidence
    assert len(controls) == 2
    assert alive == [False, True]  # when the last cell was judged
