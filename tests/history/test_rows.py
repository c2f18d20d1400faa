from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import ReportCell
from harness.core.stack import CheckedOut, StackFacts, Version
from harness.history.trends import UNITS, drift, run_row
from tests.sample_report import sample_report


def test_a_report_gives_a_row_for_every_cell_and_every_rejected_one() -> None:
    report = sample_report()
    row = run_row(report)
    assert (row.run_id, row.matrix, row.verdict, row.started) == (
        report.run_id,
        "smoke",
        "fail",
        "2026-08-22T10:15:30Z",
    )
    assert [cell.cell_id for cell in row.cells] == [cell.id for cell in [*report.cells, *report.rejected]]
    assert [cell.outcome for cell in row.cells[-2:]] == ["REJECTED", "REJECTED"]
    assert row.cells[-1].reason == "kv-heads: kv_heads 4 % tp 8 = 4, must be 0"


def test_a_cell_is_followed_by_its_name_without_the_hash() -> None:
    names = [cell.name for cell in run_row(sample_report()).cells]
    assert "tp2-pp4-cp1-sft" in names
    assert len(set(names)) == len(names)


def test_two_cells_of_one_name_are_followed_by_their_ids() -> None:
    report = sample_report()
    twin = replace(report.cells[1], id=report.cells[1].id.rpartition("-")[0] + "-00000000")
    row = run_row(replace(report, cells=[*report.cells, twin]))
    assert {row.cells[1].name, row.cells[len(report.cells)].name} == {report.cells[1].id, twin.id}


def test_metrics_are_named_with_their_units_and_absent_ones_are_left_out() -> None:
    row = run_row(sample_report())
    passed = next(cell for cell in row.cells if cell.name == "tp2-pp1-cp1-sft")
    assert set(passed.metrics) == set(UNITS)
    assert passed.metrics["step_p50_s"] == 0.031
    assert 0 < passed.metrics["loss_drift"] < 1e-6
    crashed = next(cell for cell in row.cells if cell.name == "tp2-pp4-cp1-sft")
    assert set(crashed.metrics) == {"wall_s", "steps_s"}
    assert [finding.check for finding in crashed.findings] == ["params_present", "params_agree_ranks", "ended"]


def test_drift_is_the_largest_relative_difference_and_keeps_nan() -> None:
    assert drift([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert drift([0.5], [0.0]) == 0.5
    assert math.isnan(drift([1.0, math.nan], [1.0, 1.0]) or 0.0)
    assert drift([math.inf], [1.0]) == math.inf
    assert drift([], [1.0]) is None


@pytest.mark.parametrize(
    ("facts", "device", "hardware"),
    [
        ({"devices": ["cpu"], "processors": ["EPYC x 8"]}, "cpu", "EPYC x 8"),
        ({"devices": ["NVIDIA H200"], "processors": ["EPYC x 8"]}, "NVIDIA H200", "NVIDIA H200"),
        ({"devices": ["cpu"]}, "cpu", "cpu"),
        ({}, "unknown", "unknown"),
    ],
)
def test_hardware_is_the_gpu_or_the_processor(facts: dict[str, list[str]], device: str, hardware: str) -> None:
    row = run_row(replace(sample_report(), provenance=Provenance(started="2026-08-22T10:15:30+00:00", **facts)))
    assert (row.device, row.hardware) == (device, hardware)


def _on(stack: str) -> ReportCell:
    cell = sample_report().cells[1]
    return replace(cell, axes={**cell.axes, "stack": stack})


def test_the_version_of_a_stack_is_its_checkouts_or_its_most_specific_distribution() -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    checkout = CheckedOut(
        project="megatron-lm",
        ref="main",
        commit=f"{commit}+changes.ab",
        reverted=(commit,),
        repository="/out of tree/lm",
    )
    torch, core = Version(name="torch", version="2.9.0"), Version(name="megatron-core", version="0.17.1")
    stacks = {
        "main": StackFacts(checkouts=(checkout,), packages=(torch,)),
        "old": StackFacts(packages=(Version(name="regex", version="1"), torch, core)),
        "image": StackFacts(container="nemo.sqsh"),
    }
    cells = [_on("default"), _on("main"), _on("old"), _on("image")]
    report = replace(sample_report(), cells=cells, rejected=[])
    row = run_row(replace(report, provenance=replace(report.provenance, stacks=stacks)))
    assert [cell.version for cell in row.cells] == [
        "megatron-core 0.19.2",
        "megatron-lm main = 0123456789ab+changes.ab without 0123456789ab",
        "megatron-core 0.17.1",
        "nemo.sqsh",
    ]


def test_the_start_is_taken_from_the_run_id_if_provenance_lacks_it() -> None:
    assert run_row(replace(sample_report(), provenance=Provenance())).started == "2026-08-22T10:15:30Z"
    with pytest.raises(ValueError, match="run old has no start time"):
        run_row(replace(sample_report(), provenance=Provenance(), run_id="old"))


def test_every_outcome_can_be_a_row() -> None:
    report = sample_report()
    for outcome in Outcome:
        (row,) = run_row(replace(report, cells=[replace(report.cells[1], outcome=outcome)], rejected=[])).cells
        assert row.outcome == outcome.value
    assert {item.name for item in fields(row)} >= {"findings", "metrics"}
