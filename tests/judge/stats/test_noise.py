from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.canary_legs import NOISE_LEGS
from harness.core.cell.config import NOISE
from harness.core.outcomes import Outcome
from harness.core.run.records import LegSeen, RankRecord, TrainingSeen
from harness.core.run.run_plan import Expansion
from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import GROWTH_FACTOR, Override, ToleranceOverrides, tolerances_for
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.noise import noise_floors
from harness.judge.weight import weight_of
from tests.judge.reports import build_report
from tests.judge.simulator import TODAY, all_evidence, config_of, found_of, judge, refound, run_of, second_training

ORDER, EPSILON, _ = NOISE_LEGS


def leg_of(record: RankRecord, name: str, *, losses: float = 0.0, gradients: float = 0.0) -> LegSeen:
    """A leg that repeats step 0 with losses and gradients larger by these fractions."""
    step = copy.deepcopy(record.steps[0])
    for loss in step.documents.values():
        loss.loss_sum *= 1 + losses
    parameters = copy.deepcopy(record.parameters)
    for seen in parameters:
        seen.update, seen.in_norm = None, None
        seen.gradient.norm_sq *= (1 + gradients) ** 2
        seen.gradient.projections = [value * (1 + gradients) for value in seen.gradient.projections]
        for part in seen.parts:
            part.norm_sq *= (1 + gradients) ** 2
            part.projections = [value * (1 + gradients) for value in part.projections]
    return LegSeen(
        leg=name,
        loss_sum=sum(loss.loss_sum for loss in step.documents.values()),
        token_count=sum(loss.tokens for loss in step.documents.values()),
        documents=step.documents,
        parameters=parameters,
        activations=copy.deepcopy(record.activations),
        training=second_training(copy.deepcopy(record)) if name == EPSILON else None,
    )


def bf16_run(change: Callable[[RankRecord], None] = lambda _: None, **noise: float) -> dict[str, CellEvidence]:
    """A bf16 run of a control, which measured that much noise, and one cell. `change`: of every record.

    The oracle does not model their model.
    """
    plan, evidence = run_of([config_of("sft", tp=2)])
    model = replace(plan.expansion.cells[0].config.model, builder="other")
    cells = tuple(
        replace(cell, config=replace(cell.config, model=model, dtype="bf16", canaries=() if cell.control else (NOISE,)))
        for cell in plan.expansion.cells
    )
    control = evidence[cells[0].id].records[0]
    control.legs = [leg_of(control, ORDER), leg_of(control, EPSILON, **noise)]
    for item in evidence.values():
        for record in item.records.values():
            change(record)
    found = {cell.id: replace(refound(evidence[cell.id]), config=cell.config) for cell in cells}
    for item in found.values():
        for record in item.records.values():
            record.environment["dtype"] = "bf16"
    return all_evidence(replace(plan, expansion=Expansion(cells=cells, rejected=())), found)


def test_the_largest_difference_of_the_legs_is_the_floor() -> None:
    control, cell = bf16_run(losses=1e-3, gradients=2e-2).values()
    floors = noise_floors(control.records)
    assert floors["document_loss"].value == pytest.approx(1e-3)
    assert floors["step_loss"].value == pytest.approx(1e-3)
    assert floors["parameter_gradient"].value == pytest.approx(2e-2)
    assert floors["grad_norm"].value == pytest.approx(2e-2, rel=0.02)
    assert floors["activation"].value == 0
    assert floors["document_loss"].by == "weights moved by one machine epsilon; harness reference attention on cpu"
    assert cell.tolerances.document_loss.value == pytest.approx(3e-3)
    assert cell.noise == {} and control.noise == floors


def test_a_floor_says_with_which_attention_and_where_it_was_measured() -> None:
    control = next(iter(bf16_run(losses=1e-3).values()))
    [record] = control.records.values()
    record.environment |= {"attention": "torch varlen_attn 2.15.0", "device": "NVIDIA H200"}
    kinds = {floor.by for floor in noise_floors(control.records).values()}
    assert "weights moved by one machine epsilon; torch varlen_attn 2.15.0 on NVIDIA H200" in kinds
    assert all(by.endswith("; torch varlen_attn 2.15.0 on NVIDIA H200") for by in kinds)


def test_differences_that_cancel_in_a_sum_still_count() -> None:
    control = next(iter(bf16_run().values()))
    [record] = control.records.values()
    documents = record.legs[1].documents
    first, second = sorted(documents)[1:3]
    documents[first].loss_sum += 0.5
    documents[second].loss_sum -= 0.5
    floor = noise_floors(control.records)["step_loss"].value
    total = math.fsum(loss.loss_sum for loss in record.steps[0].documents.values())
    assert floor == pytest.approx(1.0 / total)


def test_within_three_floors_a_cell_passes_and_beyond_it_fails() -> None:
    for factor, checks in ((2.9, []), (3.2, ["document_loss"])):
        _, cell = bf16_run(losses=1e-3).values()
        for record in cell.records.values():
            for loss in record.steps[0].documents.values():
                loss.loss_sum *= 1 + factor * 1e-3
        findings = judge(cell).findings
        assert [finding.check for finding in findings] == checks
        assert all(
            "noise floor 0.001 (weights moved by one machine epsilon; harness reference attention on cpu) x 3"
            in item.message
            for item in findings
        )


def test_later_steps_are_not_held_to_the_noise_of_the_first() -> None:
    _, cell = bf16_run(losses=1e-6).values()
    for record in cell.records.values():
        for loss in record.steps[1].documents.values():
            loss.loss_sum *= 1 + 1e-3
    assert judge(cell).findings == []
    assert cell.bound("step_loss", 1).value > cell.bound("step_loss", 0).value


def test_a_leg_that_is_not_finite_measures_nothing() -> None:
    control = next(iter(bf16_run(losses=math.nan).values()))
    assert (
        noise_floors(control.records)["document_loss"].by
        == "documents in reverse order; harness reference attention on cpu"
    )


def test_a_cell_without_noise_legs_has_the_defaults() -> None:
    plan, evidence = run_of([config_of("sft")])
    assert all(item.noise == {} and item.tolerances == item.later for item in evidence.values())
    assert build_report(plan, evidence.values(), today=TODAY, timing={}).noise == {}


def test_the_report_holds_the_measured_floors() -> None:
    evidence = bf16_run(losses=1e-3)
    plan, _ = run_of([config_of("sft", tp=2)])
    report = build_report(plan, evidence.values(), today=TODAY, timing={})
    assert list(report.noise) == [next(iter(evidence))]
    assert report.noise[next(iter(evidence))]["document_loss"].value == pytest.approx(1e-3)


SMALL = "decoder.layers.1.input_layernorm.weight"


def small(norm: float, again: float) -> Callable[[RankRecord], None]:
    """Sets the norm of the gradient of SMALL, in step 0 and in the leg with moved weights."""

    def change(record: RankRecord) -> None:
        for value, parameters in ((norm, record.parameters), *((again, leg.parameters) for leg in record.legs[1:])):
            for seen in parameters:
                if seen.name == SMALL:
                    seen.gradient = Fingerprint(norm_sq=value * value, projections=[value / 2, -value / 2])
        for leg in record.legs[:1]:
            for again_seen in leg.parameters:
                if again_seen.name == SMALL:
                    again_seen.gradient = Fingerprint(norm_sq=norm * norm, projections=[norm / 2, -norm / 2])

    return change


def scale(cell: CellEvidence, factor: float, *names: str) -> None:
    for record in cell.records.values():
        for seen in record.parameters:
            if not names or seen.name in names:
                old = seen.gradient
                values = [value * factor for value in old.projections]
                seen.gradient = Fingerprint(norm_sq=old.norm_sq * factor**2, projections=values)


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.0, -1.0])
def test_noise_as_large_as_the_numbers_makes_a_comparison_impossible(factor: float) -> None:
    control, cell = bf16_run(small(norm=1.0, again=3.0), gradients=0.01).values()
    scale(cell, factor)
    for evidence in (control, cell):
        verdict = judge(evidence)
        assert verdict.outcome is Outcome.ERROR
        assert verdict.reason == (
            "the noise of the reference is too large to compare: the floor of parameter_gradient is 2 "
            f"({SMALL}; weights moved by one machine epsilon; harness reference attention on cpu), more than 0.13"
        )


def test_a_gradient_that_is_only_rounding_noise_sets_no_floor_and_may_differ_by_rounding() -> None:
    norm = 1e-3  # of a whole of about 5, so rounding may make 0.02
    control, cell = bf16_run(small(norm, again=4 * norm), gradients=0.02).values()
    floor = control.noise["parameter_gradient"]
    assert (floor.value, floor.noise_only) == (pytest.approx(0.02), (SMALL,))
    assert floor.at != SMALL
    for factor, names, outcome in (
        (-5.0, [SMALL], Outcome.PASS),
        (50.0, [SMALL], Outcome.FAIL),
        (2.0, [], Outcome.FAIL),
        (0.0, [], Outcome.FAIL),
        (-1.0, [], Outcome.FAIL),
    ):
        _, cell = bf16_run(small(norm, again=4 * norm), gradients=0.02).values()
        scale(cell, factor, *names)
        assert judge(cell).outcome is outcome


def test_a_small_gradient_that_is_reproducible_is_compared_like_any_other() -> None:
    control, cell = bf16_run(small(1e-3, again=1.05e-3), gradients=0.02).values()
    floor = control.noise["parameter_gradient"]
    assert (floor.value, floor.at, floor.noise_only) == (pytest.approx(0.05), SMALL, ())
    scale(cell, 0.5, SMALL)
    assert [finding.where["parameter"] for finding in judge(cell).findings] == [SMALL]


def test_a_gradient_that_is_zero_in_step_0_sets_no_floor() -> None:
    """As of an expert that gets no token in step 0, and one after the weights moved."""
    control, cell = bf16_run(small(0.0, again=2.0), gradients=0.02).values()
    assert control.noise["parameter_gradient"].value == pytest.approx(0.02)
    assert judge(cell).outcome is Outcome.PASS


def test_the_noise_of_a_control_that_did_not_pass_bounds_nothing() -> None:
    """The cell's own checks then have the default bounds."""
    control, cell = bf16_run(gradients=0.12).values()
    [seen] = [item for item in cell.records[1].parameters if item.name == SMALL]
    seen.gradient = Fingerprint(norm_sq=seen.gradient.norm_sq * 1.2**2, projections=seen.gradient.projections)
    assert judge(cell).outcome is Outcome.PASS
    control.records[0].steps[0].token_count = 3
    verdict = judge(cell)
    assert verdict.outcome is Outcome.FAIL
    assert [finding.check for finding in verdict.findings] == ["replica_gradients"]


def after_training_twice(change: Callable[[TrainingSeen], None], steps: int = 2) -> CellEvidence:
    """A cell of fp32 that the oracle does not model, whose control's second training is changed."""
    config = config_of("sft", tp=2)
    model, train = replace(config.model, builder="other"), replace(config.train, steps=steps)
    plan, evidence = run_of([replace(config, model=model, train=train)])
    control, cell = plan.expansion.cells
    control = replace(control, config=replace(control.config, canaries=(NOISE,)))
    measured = found_of(control)
    [leg] = measured.records[0].legs
    assert leg.training is not None
    change(leg.training)
    plan = replace(plan, expansion=Expansion(cells=(control, cell), rejected=()))
    return all_evidence(plan, {control.id: measured, cell.id: refound(evidence[cell.id])})[cell.id]


def times(factor: float, number: int = -1) -> Callable[[TrainingSeen], None]:
    """Change losses and gradient norm of a later step, the last one if none is given, and every weight's change."""

    def change(training: TrainingSeen) -> None:
        step = training.steps[number]
        assert step.grad_norm is not None
        step.grad_norm *= factor
        step.loss_sum *= factor
        for loss in step.documents.values():
            loss.loss_sum *= factor
        for whole in training.trained.values():
            whole.norm_sq *= factor**2
            whole.projections = [value * factor for value in whole.projections]

    return change


def wrong(cell: CellEvidence, factor: float) -> list[str]:
    """The checks that find it if the last step of every rank is wrong by a factor."""
    last = cell.steps[-1]
    for record in cell.records.values():
        step = record.steps[last]
        assert step.grad_norm is not None
        step.grad_norm *= factor
        step.loss_sum = step.loss_sum and step.loss_sum * factor
        for loss in step.documents.values():
            loss.loss_sum *= factor
    return [finding.check for finding in judge(cell).findings]


@pytest.mark.parametrize(
    ("amplified", "factor", "checks"),
    [
        (1.0, 1.001, ["document_loss", "step_loss", "grad_norm"]),
        (1.001, 1.001, []),
        (1.001, 1.1, ["document_loss", "step_loss", "grad_norm"]),
    ],
)
def test_later_bounds_grow_as_two_trainings_of_the_control_part(
    amplified: float, factor: float, checks: list[str]
) -> None:
    assert wrong(after_training_twice(times(amplified)), factor) == checks


def test_a_bound_that_grew_says_how_it_was_measured() -> None:
    cell = after_training_twice(times(1.001))
    bound = cell.bound("grad_norm", 1)
    assert bound is not None
    assert bound.value == pytest.approx(GROWTH_FACTOR * 1e-3)
    assert bound.origin.startswith(
        "two trainings of the reference differ by 0.001 (weights moved by one machine epsilon"
    )
    at_start = cell.bound("grad_norm", 0)
    assert at_start is not None and at_start.value == 1e-4


def test_what_rounding_decides_is_not_compared_and_the_evidence_says_so() -> None:
    cell = after_training_twice(times(2.0))
    assert wrong(cell, 1.5) == []
    said = weight_of(cell).not_compared
    assert "losses from step 1 on" in said and "gradient norms from step 1 on" in said
    for record in cell.records.values():  # step 0 is compared all the same
        assert record.steps[0].grad_norm is not None
        record.steps[0].grad_norm *= 1.5
    assert "grad_norm" in [finding.check for finding in judge(cell).findings]


def test_a_cell_may_be_a_few_steps_ahead_of_the_pair_in_what_rounding_decides() -> None:
    cell = after_training_twice(times(2.0), steps=7)
    for name in ("grad_norm", "step_loss", "document_loss"):
        assert [step for step in range(7) if cell.bound(name, step) is not None] == [0, 1, 2]


def test_a_bound_of_the_matrix_does_not_grow() -> None:
    cell = after_training_twice(times(1.1))
    mine = ToleranceOverrides(numerics={"grad_norm": Override(value=1e-3)})
    cell.tolerances = cell.later = tolerances_for("fp32", mine)
    bound = cell.bound("grad_norm", 1)
    assert bound is not None and bound.value == 1e-3
    assert cell.bound("step_loss", 1) is None


def test_a_second_training_without_a_step_is_incomplete_evidence() -> None:
    cell = after_training_twice(lambda training: training.steps.clear())
    assert cell.control is not None
    assert judge(cell.control).outcome is Outcome.ERROR
    assert "not those of the training leg" in judge(cell.control).reason


def infinite(record: RankRecord, step: int) -> None:
    record.steps[step].grad_norm = math.inf


@pytest.mark.parametrize(("amplified", "outcome"), [(1.0, Outcome.FAIL), (2.0, Outcome.PASS)])
def test_numbers_are_infinite_only_where_training_diverges(amplified: float, outcome: Outcome) -> None:
    """Step 1 is lost to rounding, if the trainings part by so much, before step 2 is infinite in cell and control."""
    cell = after_training_twice(times(amplified, number=0), steps=3)
    assert cell.control is not None
    for record in (*cell.records.values(), *cell.control.records.values()):
        infinite(record, 2)
    assert judge(cell.control).outcome is outcome
    if outcome is Outcome.PASS:
        assert judge(cell).outcome is outcome
        infinite(cell.records[0], 0)
        assert [finding.check for finding in judge(replace(cell)).findings] == ["finiteness"]


def test_a_cell_alone_may_not_be_infinite_where_its_control_is_finite() -> None:
    cell = after_training_twice(times(2.0))
    infinite(cell.records[0], 1)
    assert [finding.check for finding in judge(cell).findings] == ["finiteness"]
