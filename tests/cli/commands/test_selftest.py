"""`harness selftest`: choice of faults, the plan, the demands on a report, exit codes; and one real run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.campaign import judging
from harness.core.cell.identity import cell_id
from harness.core.errors import InputError
from harness.core.outcomes import Finding, Lane, LaneVerdict, Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, ReportCell
from harness.core.run.run_dir import RunDir
from harness.core.stack import DEFAULT, Checkout, Stack
from harness.faults.catalogue import FAULTS
from harness.faults.spec import STACK_OF_VERL, FaultSpec
from harness.features.adapters.faults import ADAPTERS
from harness.features.vision.faults import VISION
from harness.judge import verdict
from harness.runs.evidence_files import read_plan
from harness.triage import selftest
from harness.triage.selftest import STACKS, with_clones
from harness.upstreams.megatron_bridge.faults import TRAINER
from harness.upstreams.megatron_lm.faults import MEGATRON_RL, SCHEDULER
from harness.upstreams.nemo_rl.faults import NEMO_RL
from harness.upstreams.verl.faults import VERL

ROLLOUT = (*VERL, *NEMO_RL, *MEGATRON_RL)
LEAK = next(spec for spec in FAULTS if spec.name == "attention-ignores-documents")
KILLED = next(spec for spec in FAULTS if spec.name == "rank-killed-from-outside")


def cell(spec: FaultSpec, **changes: Any) -> ReportCell:
    """The fault's cell as the report must have it."""
    lanes = {Lane.METADATA: LaneVerdict.PASS, Lane.NUMERICS: LaneVerdict.PASS, Lane.THROUGHPUT: LaneVerdict.SKIP}
    lanes[spec.lane] = LaneVerdict.FAIL
    checks = {check.name: check.lane for check in verdict.CHECKS}
    findings = [
        Finding(lane=checks[name], check=name, message="seen", where=spec.where | spec.also.get(name, {}))
        for name in spec.checks
    ]
    made = ReportCell(
        id=cell_id(spec.faulty),
        axes={"fault": spec.name},
        layout=spec.layout,
        outcome=spec.outcome,
        lanes=lanes,
        findings=findings,
        timing={},
        reproduce="",
    )
    return replace(made, **changes)


def clean(spec: FaultSpec, outcome: Outcome = Outcome.PASS) -> list[ReportCell]:
    """The clean twin and the control."""
    return [
        cell(spec, id=cell_id(config), axes={"fault": "none"}, outcome=outcome, findings=[], lanes={})
        for config in (spec.twin, spec.control)
    ]


def report(*cells: ReportCell) -> Report:
    return Report(
        run_id="r",
        matrix="selftest",
        matrix_file="selftest",
        verdict="fail",
        counts={},
        provenance=Provenance(),
        timing={},
        cells=list(cells),
        rejected=[],
    )


def problems(spec: FaultSpec, **changes: Any) -> str:
    return "; ".join(selftest.judge_fault(spec, report(cell(spec, **changes))).problems)


def test_an_unknown_fault_is_an_input_error_that_suggests_the_right_name() -> None:
    with pytest.raises(InputError, match=r"gradients-time-cp: no such fault.*did you mean gradients-times-cp") as error:
        selftest.choose(["gradients-time-cp", "zzz", "attention-ignores-documents"])
    assert len(error.value.problems) == 2


def test_faults_are_chosen_by_name_in_the_order_of_the_catalogue() -> None:
    assert selftest.choose([]) == [spec for spec in FAULTS if spec.stack == DEFAULT]
    assert selftest.choose([], trainers=True) == [*ADAPTERS, *TRAINER, *VISION, *ROLLOUT, *SCHEDULER]
    assert selftest.choose([TRAINER[1].name]) == [TRAINER[1]]
    names = [FAULTS[3].name, FAULTS[1].name]
    assert selftest.choose(names) == [FAULTS[1], FAULTS[3]]


def test_the_plan_holds_each_fault_beside_its_twin_and_reference_once() -> None:
    plan = selftest.plan_faults(FAULTS)
    cells = {cell.id: cell for cell in plan.expansion.cells}
    assert len(cells) == len(plan.expansion.cells)
    for spec in FAULTS:
        faulty, twin = cells[cell_id(spec.faulty)], cells[cell_id(spec.twin)]
        assert faulty.control == cell_id(spec.control)
        assert (twin.control or twin.id) == cell_id(spec.control)  # a twin may itself be the control
        assert faulty.group == twin.group
        assert cells[cell_id(spec.control)].role == "control"
        assert set(twin.config.canaries) >= set(spec.faulty.canaries)
        plain = replace(twin.config, canaries=spec.twin.canaries)  # as a control it also measures noise
        assert (faulty.config, plain) == (spec.faulty, spec.twin)  # ids of other configurations differ


def test_cells_that_may_wait_for_their_deadline_are_started_first() -> None:
    plan = selftest.plan_faults(selftest.choose([]))
    deadlines = {cell.id: cell.config.deadline_s for cell in plan.expansion.cells if not cell.config.timing.turns}
    (allocation,) = (item for item in plan.allocations if not item.interleaved)
    assert sorted(allocation.cells) == sorted(deadlines)
    order = [deadlines[cell] for cell in allocation.cells]
    assert order == sorted(order)


def test_faults_in_upstreams_code_have_an_allocation_of_their_stack() -> None:
    plan = selftest.plan_faults([*TRAINER, *ROLLOUT, LEAK])
    stacks = [name for _, name in STACKS]
    assert sorted(item.stack for item in plan.allocations) == sorted([*stacks, DEFAULT])
    assert sum(len(item.cells) for item in plan.allocations) == len(plan.expansion.cells)


def test_faults_whose_clone_is_not_there_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, other = [spec for spec in ROLLOUT if spec.stack == STACK_OF_VERL[1]][:2]
    places = {STACK_OF_VERL: tmp_path / "absent", ("trainer_bridge", "bridge062"): tmp_path}
    stacks = [
        Stack(name=name, checkouts=(Checkout(repository=str(place), ref="x", package="megatron-bridge"),))
        for (_, name), place in places.items()
    ]
    monkeypatch.setattr(selftest, "stacks_of", lambda names: [s for s in stacks if s.name in set(names)])
    assert selftest.with_clones([left, other, TRAINER[0]]) == [TRAINER[0]]
    said = capsys.readouterr().err
    assert f"left out, since no clone is at {tmp_path / 'absent'}: {left.name}, {other.name}" in (
        " ".join(said.split())
    )


def test_a_fault_and_its_twin_that_take_turns_are_in_two_allocations() -> None:
    pairs = [spec for spec in FAULTS if spec.timing.turns]
    base, other, rest = selftest.plan_faults([*pairs, LEAK]).allocations
    assert pairs
    assert (base.interleaved, other.interleaved, rest.interleaved) == (True, True, False)
    assert base.cells == tuple(cell_id(spec.twin) for spec in pairs)
    assert other.cells == tuple(cell_id(spec.faulty) for spec in pairs)
    planned = {cell.id: cell.base for cell in selftest.plan_faults(pairs).expansion.cells}
    assert [planned[cell] for cell in other.cells] == list(base.cells)


@pytest.mark.parametrize("spec", FAULTS, ids=lambda spec: spec.name)
def test_a_report_as_demanded_meets_every_demand(spec: FaultSpec) -> None:
    result = selftest.judge_fault(spec, report(cell(spec)))
    assert (result.problems, result.caught, result.right_lane, result.right_place) == ([], True, True, True)


def test_a_fault_that_passes_is_missed() -> None:
    passing = dict.fromkeys(Lane, LaneVerdict.PASS)
    assert "the outcome is PASS" in problems(LEAK, outcome=Outcome.PASS, findings=[], lanes=passing)


def test_another_place_is_not_good_enough() -> None:
    findings = cell(LEAK).findings
    findings[0] = replace(findings[0], where={**LEAK.where, "layer": 2})
    assert "activations names another place: stage 0, layer 2" in problems(LEAK, findings=findings)
    assert not selftest.judge_fault(LEAK, report(cell(LEAK, findings=findings))).right_place


def test_a_check_that_stays_silent_is_named() -> None:
    assert problems(LEAK, findings=cell(LEAK).findings[:1]).startswith("document_loss has no finding")


def test_a_red_metadata_lane_beside_a_numeric_fault_is_wrong() -> None:
    lanes = {**cell(LEAK).lanes, Lane.METADATA: LaneVerdict.FAIL}
    assert "the verdict of lane metadata is fail instead of pass" in problems(LEAK, lanes=lanes)


def test_a_finding_further_down_at_another_place_is_not_good_enough_either() -> None:
    findings = [
        replace(item, where=item.where | {"culprit": 9}) if item.check == "isolation" else item
        for item in cell(LEAK).findings
    ]
    assert problems(LEAK, findings=findings) == (
        "isolation names another place than leg isolation, document 1, culprit 0"
    )
    assert not selftest.judge_fault(LEAK, report(cell(LEAK, findings=findings))).right_place


def test_a_leading_finding_of_another_check_is_wrong() -> None:
    findings = list(reversed(cell(LEAK).findings))
    assert "the leading finding is numerics: order" in problems(LEAK, findings=findings)


def test_a_fault_whose_cell_was_rejected_cannot_be_judged() -> None:
    with pytest.raises(InputError, match="cannot run here"):
        selftest.judge_fault(LEAK, report())


def test_the_killed_rank_must_not_be_blamed_on_the_code() -> None:
    assert "the outcome is FAIL" in problems(KILLED, outcome=Outcome.FAIL)


def code(*cells: ReportCell) -> int:
    whole = report(*cells)
    results = [selftest.judge_fault(LEAK, whole)]
    return selftest.exit_code_of(results, selftest.false_alarms([LEAK], whole))


def test_exit_codes_tell_caught_missed_and_undecided_apart() -> None:
    good, error = cell(LEAK), cell(LEAK, outcome=Outcome.ERROR)
    missed = cell(LEAK, outcome=Outcome.PASS)
    assert code(good, *clean(LEAK)) == 0
    assert code(missed, *clean(LEAK)) == 1
    assert code(good, *clean(LEAK, Outcome.FAIL)) == 1
    assert code(error, *clean(LEAK)) == 3
    assert code(good, *clean(LEAK, Outcome.ERROR)) == 3
    assert code(missed, *clean(LEAK, Outcome.ERROR)) == 1


@pytest.mark.train
@pytest.mark.long  # short: the next test
def test_every_fault_in_upstreams_trainer_is_caught(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = with_clones(selftest.choose([], trainers=True))
    assert {spec.name for spec in (*ADAPTERS, *TRAINER, *VISION)} <= {spec.name for spec in here}
    assert selftest.run([], tmp_path, trainers=True) == 0, capsys.readouterr().out
    assert caught(len(here)) in capsys.readouterr().out


@pytest.mark.train
def test_faults_in_upstreams_trainer_are_caught_by_the_checks_of_all_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["loss-function-times-cp", "later-stages-without-metadata", "samples-not-loaded"]
    names += ["evaluation-leaves-its-mode", "reported-norm-times-tp"]
    assert selftest.run(names, tmp_path) == 0, capsys.readouterr().out
    assert caught(len(names)) in capsys.readouterr().out


@pytest.mark.train
@pytest.mark.long
def test_more_faults_in_upstreams_trainer_are_caught(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["clipped-by-the-norm-of-one-rank", "samples-counted-twice", "replica-reads-the-rows-of-another"]
    names += ["updates-counted-from-zero-in-another-layout", "tokens-counted-on-one-replica"]
    names += ["printed-loss-with-that-of-the-step-before"]
    assert selftest.run(names, tmp_path) == 0, capsys.readouterr().out
    assert caught(len(names)) in capsys.readouterr().out


def caught(every: int) -> str:
    """The score when all faults are caught."""
    return f"{every} of {every} faults caught, {every} in the right lane, {every} at the right place; 0 false alarms"


@pytest.mark.train
@pytest.mark.smoke
def test_real_faults_are_caught_and_a_check_that_is_taken_away_is_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["middle-stages-without-metadata", "gradients-times-cp", "document-shorter-than-the-alignment"]
    assert selftest.run(names, tmp_path) == 0
    assert "3 of 3 faults caught, 3 in the right lane, 3 at the right place; 0 false alarms" in capsys.readouterr().out
    (root,) = tmp_path.iterdir()
    score = json.loads((root / "selftest.json").read_text())["score"]
    assert score == {
        "faults": 3,
        "caught": 3,
        "right_lane": 3,
        "right_place": 3,
        "all_demands_met": 3,
        "false_alarms": 0,
    }
    specs = selftest.choose(names)
    for lost in specs:
        left = tuple(check for check in verdict.CHECKS if check.name not in lost.checks)
        with monkeypatch.context() as patch:
            patch.setattr(verdict, "CHECKS", left)
            again = judging.judge(RunDir(root), read_plan(RunDir(root)))
        assert selftest.judge_fault(lost, again).problems
