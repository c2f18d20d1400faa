"""The fault catalogue: every entry is consistent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.cell.identity import cell_id
from harness.core.cell.layout import Layout
from harness.core.errors import InputError
from harness.core.outcomes import Lane, Outcome
from harness.core.run.run_dir import path_component
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.faults.catalogue import FAULTS, catalogue_markdown, catalogue_text, demand_text, with_fault
from harness.faults.spec import CLASSES, FaultSpec
from harness.judge.checks.table import CHECKS
from harness.matrix.expansion.expand import with_controls
from tests.judge.simulator import config_of

each = pytest.mark.parametrize("spec", FAULTS, ids=lambda spec: spec.name)


def test_names_are_unique_and_make_file_names() -> None:
    names = [spec.name for spec in FAULTS]
    assert len(set(names)) == len(names) >= 40
    assert all(path_component(cell_id(spec.faulty)) for spec in FAULTS)


def test_every_class_has_a_fault_and_no_other_class_occurs() -> None:
    assert {spec.fault_class for spec in FAULTS} == set(CLASSES)


def test_a_fault_drops_the_broadcast_to_the_middle_stages() -> None:
    spec = next(spec for spec in FAULTS if spec.name == "middle-stages-without-metadata")
    assert spec.layout.pp == 3
    assert spec.lane is Lane.METADATA
    assert spec.where["stages"] == [1]


def test_every_check_is_demanded_by_a_fault() -> None:
    # `slower_than_history` needs earlier runs, which no fault has; tests/campaign/test_baselines.py tests it.
    # `reported` needs upstream's own trainer, which tests/matrices/test_trainer.py edits instead.
    others = {"slower_than_history", "reported"}
    assert {check for spec in FAULTS for check in spec.checks} | others == {check.name for check in CHECKS}


@each
def test_the_first_check_belongs_to_the_lane(spec: FaultSpec) -> None:
    assert {check.name: check.lane for check in CHECKS}[spec.checks[0]] is spec.lane


@each
def test_the_twin_differs_only_in_fault_and_deadline_and_is_timed_first(spec: FaultSpec) -> None:
    timing = replace(spec.timing, first=bool(spec.timing.turns))
    assert replace(spec.faulty, fault=None, deadline_s=spec.twin.deadline_s, timing=timing) == spec.twin
    assert spec.twin.fault is None


@each
def test_the_control_is_one_rank_with_the_same_documents_unpacked(spec: FaultSpec) -> None:
    control = spec.control
    assert (control.layout, control.data_path) == (Layout(), "unpacked")
    assert [control.documents_of(step) for step in (0, 1)] == [spec.twin.documents_of(step) for step in (0, 1)]
    assert control.model == spec.twin.model


@each
def test_the_cell_fits_its_layout(spec: FaultSpec) -> None:
    config = spec.faulty
    assert config.model.layers % (config.layout.pp * config.layout.vpp) == 0
    assert config.layout.world_size <= 8
    assert all(replica for step in range(config.train.steps) for replica in config.micro_batches(step))


def test_only_infrastructure_faults_end_in_error_and_only_slow_ones_pass() -> None:
    for spec in FAULTS:
        warned = spec.checks == ("params_identity",)
        right = Outcome.ERROR if spec.fault_class == "infrastructure" else Outcome.PASS if warned else Outcome.FAIL
        assert spec.outcome is right, spec.name


def test_the_page_is_the_generated_catalogue(root: Path) -> None:
    page = (root / "docs" / "generated" / "faults.md").read_text(encoding="utf-8")
    assert page == catalogue_markdown(FAULTS), "run `python scripts/key_tables.py` and read the difference"


@each
def test_text_and_page_show_every_field_of_a_fault(spec: FaultSpec) -> None:
    for text in (catalogue_text([spec]), catalogue_markdown([spec])):
        for part in (spec.name, spec.summary, spec.modelled_on, spec.why, demand_text(spec)):
            assert part in text


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
