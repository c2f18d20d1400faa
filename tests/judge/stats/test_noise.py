from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest

from harness.core.cell.canary_legs import NOISE_LEGS
from harness.core.cell.config import NOISE
from harness.core.run.records import LegSeen, RankRecord
from harness.core.run.run_plan import Expansion
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.noise import noise_floors
from tests.judge.reports import build_report
from tests.judge.simulator import TODAY, all_evidence, config_of, judge, refound, run_of

ORDER, EPSILON = NOISE_LEGS


def leg_of(record: RankRecord, name: str, *, losses: float = 0.0, gradients: float = 0.0) -> LegSeen:
    """A leg that repeats step 0 with losses and gradients larger by these fractions."""
    step = copy.deepcopy(record.steps[0])
    for loss in step.documents.values():
        loss.loss_sum *= 1 + losses
    parameters = copy.deepcopy(record.parameters)
    for seen in parameters:
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
    )


def bf16_run(**noise: float) -> dict[str, CellEvidence]:
    """A bf16 run of a control, which measured that much noise, and one cell."""
    plan, evidence = run_of([config_of("sft", tp=2)])
    cells = tuple(
        replace(cell, config=replace(cell.config, dtype="bf16", canaries=() if cell.control else (NOISE,)))
        for cell in plan.expansion.cells
    )
    control = evidence[cells[0].id].records[0]
    control.legs = [leg_of(control, ORDER), leg_of(control, EPSILON, **noise)]
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
    assert floors["document_loss"].by == "weights moved by one machine epsilon; reference on cpu"
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
    assert floor == pytest.approx(math.sqrt(0.5) / total)


def test_within_three_floors_a_cell_passes_and_beyond_it_fails() -> None:
    for factor, checks in ((2.9, []), (3.2, ["document_loss"])):
        _, cell = bf16_run(losses=1e-3).values()
        for record in cell.records.values():
            for loss in record.steps[0].documents.values():
                loss.loss_sum *= 1 + factor * 1e-3
        findings = judge(cell).findings
        assert [finding.check for finding in findings] == checks
        assert all(
            "noise floor 0.001 (weights moved by one machine epsilon; reference on cpu) x 3" in item.message
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
    assert noise_floors(control.records)["document_loss"].by == "documents in reverse order; reference on cpu"


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
