"""`--fault` breaks the chosen cells, but not those with which others are compared."""

from __future__ import annotations

import pytest

from harness.core.cell.identity import cell_id
from harness.core.errors import InputError
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.plan.expansion.expand import with_controls
from harness.plan.faults.inject import with_fault
from tests.judge.simulator import config_of

LEAK = "attention-ignores-documents"


def expansion() -> Expansion:
    cells: dict[str, PlannedCell] = {}
    for config in (config_of("sft", tp=2), config_of("reference", cp=2)):
        cells |= {cell.id: cell for cell in with_controls(config)}
    return Expansion(cells=tuple(cells.values()), rejected=())


def test_cells_are_broken_and_controls_are_not() -> None:
    sound = expansion()
    broken = with_fault(sound, LEAK)
    assert len(broken.cells) == len(sound.cells) == 3
    for before, after in zip(sound.cells, broken.cells, strict=True):
        assert after.control == before.control
        assert after.config.fault == (LEAK if before.control else None)
        assert after.id == cell_id(after.config)
        assert (after.id == before.id) is (before.control is None)


def test_a_misspelt_fault_has_suggestions() -> None:
    with pytest.raises(InputError, match=rf"--fault attention-ignores-document: no such fault.*{LEAK}"):
        with_fault(expansion(), "attention-ignores-document")


def test_a_fault_in_code_that_no_cell_runs_is_refused() -> None:
    with pytest.raises(InputError, match=r"no chosen cell can have rollout-labels-rolled.*packing"):
        with_fault(expansion(), "rollout-labels-rolled-after-the-cp-split")
    alone = Expansion(cells=expansion().cells[:1], rejected=())
    with pytest.raises(InputError, match="compared with a control"):
        with_fault(alone, LEAK)
