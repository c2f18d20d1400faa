from __future__ import annotations

from dataclasses import replace

from harness.core.run.run_plan import Allocation
from harness.judge.evidence.in_turn import CellFound, evidence_in_turn
from tests.judge.simulator import config_of, run_of


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
