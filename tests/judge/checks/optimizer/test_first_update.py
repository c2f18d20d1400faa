from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.tensor_records import Fingerprint, UpdateSeen
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding

FIRST = "decoder.layers.0.self_attention.linear_qkv.weight"
TEXTS = {"first_moment": "first moment", "second_moment": "second moment", "change": "change by the first update"}


def scaled(value: Fingerprint, factor: float) -> Fingerprint:
    return Fingerprint(norm_sq=value.norm_sq * factor * factor, projections=[one * factor for one in value.projections])


def change(evidence: CellEvidence, name: str, field: str, factor: float, ranks: tuple[int, ...] = ()) -> None:
    """Scale a tensor of a parameter on ranks, by default all."""
    for rank, record in evidence.records.items():
        for seen in record.parameters:
            if seen.name == name and (not ranks or rank in ranks):
                assert seen.update is not None
                seen.update = replace(seen.update, **{field: scaled(getattr(seen.update, field), factor)})


def cell(**layout: int) -> CellEvidence:
    return evidence_for(config_of("sft", **layout))


def name_of(evidence: CellEvidence, number: int = 1) -> str:
    return evidence.records[0].parameters[number].name


def test_equal_updates_pass() -> None:
    assert judge(cell(tp=2, pp=2, dp=2)).outcome is Outcome.PASS


@pytest.mark.parametrize("field", TEXTS)
def test_an_update_that_differs_from_the_control_names_tensor_and_parameter(field: str) -> None:
    evidence = cell(pp=2)
    name = name_of(evidence)
    change(evidence, name, field, 0.5)
    finding = the_only_finding(evidence, "first_update")
    assert finding.message.startswith(f"{TEXTS[field]} of {name}, whose gradient is right, is off by 0.5 > ")
    assert finding.message.endswith(f" from the control; differing: parameter {name}")
    assert place_of(finding, "step", "parameter", "parameters") == (0, name, [name])
    assert finding.fault_class == fault_classes.OPTIMIZER


def test_a_copy_that_differs_names_its_rank() -> None:
    evidence = cell(dp=2)
    name = name_of(evidence)
    change(evidence, name, "first_moment", 0.5, ranks=(1,))
    finding = the_only_finding(evidence, "first_update")
    assert "from its copy on rank 0; here rank 1 (stage 0, tp 0, cp 0, dp 1)" in finding.message
    assert place_of(finding, "rank", "dp", "parameter") == (1, 1, name)


@pytest.mark.parametrize(
    ("field", "within", "beyond"),
    [("first_moment", 1.00009, 1.0002), ("second_moment", 1.00039, 1.0005), ("change", 1.019, 1.021)],
)
def test_bounds_follow_from_that_of_gradients(field: str, within: float, beyond: float) -> None:
    """fp32: 1e-4, four times as much for squares, and 2 sqrt(1e-4) for signs."""
    for factor, outcome in ((within, Outcome.PASS), (beyond, Outcome.FAIL)):
        evidence = cell(pp=2)
        change(evidence, name_of(evidence), field, factor)
        assert judge(evidence).outcome is outcome


def test_the_consequence_of_a_wrong_gradient_is_not_a_finding_beside_it() -> None:
    evidence = cell(pp=2)
    name = name_of(evidence)
    change(evidence, name, "first_moment", 0.5)
    for record in evidence.records.values():
        for seen in record.parameters:
            if seen.name == name:
                seen.gradient = scaled(seen.gradient, 0.5)
    checks = {finding.check for finding in judge(evidence).findings}
    assert "parameter_gradients" in checks and "first_update" not in checks


def test_the_consequence_of_a_wrong_copy_of_a_gradient_is_not_a_finding_beside_it() -> None:
    evidence = cell(dp=2)
    name = name_of(evidence)
    change(evidence, name, "first_moment", 0.5, ranks=(1,))
    for seen in evidence.records[1].parameters:
        if seen.name == name:
            seen.gradient = scaled(seen.gradient, 0.5)
    assert [finding.check for finding in judge(evidence).findings] == ["replica_gradients"]


def bounded(evidence: CellEvidence, **bound: Any) -> CellEvidence:
    """With another bound of gradients."""
    wanted = replace(evidence.tolerances.parameter_gradient, **bound)
    return replace(evidence, tolerances=replace(evidence.tolerances, parameter_gradient=wanted))


@pytest.mark.parametrize(
    ("bound", "compared"),
    [({"value": 0.24}, ["first_moment", "second_moment", "change"]), ({"value": 0.25}, ["first_moment"])],
)
def test_what_would_accept_no_update_at_all_is_not_compared(bound: dict[str, Any], compared: list[str]) -> None:
    for field in TEXTS:
        evidence = cell(pp=2)
        change(evidence, name_of(evidence), field, 0.0)
        found = judge(bounded(evidence, **bound)).findings
        assert [finding.check for finding in found] == (["first_update"] if field in compared else [])


def test_an_absolute_bound_of_gradients_bounds_first_moments_only() -> None:
    evidence = cell(pp=2)
    for field in ("second_moment", "change"):
        change(evidence, name_of(evidence), field, 0.0)
    assert judge(bounded(evidence, value=0.01, unit="absolute")).findings == []
    change(evidence, name_of(evidence), "first_moment", 0.0)
    assert [item.check for item in judge(bounded(evidence, value=0.01, unit="absolute")).findings] == ["first_update"]


def test_an_update_that_is_missing_is_an_error() -> None:
    evidence = cell(pp=2)
    evidence.records[1].parameters[0].update = None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "has no update" in verdict.reason


def test_a_number_that_is_not_finite_is_left_to_the_check_of_finiteness() -> None:
    evidence = cell(pp=2)
    seen = evidence.records[0].parameters[1]
    assert seen.update is not None
    broken = replace(seen.update.change, norm_sq=math.nan)
    seen.update = UpdateSeen(
        first_moment=seen.update.first_moment, second_moment=seen.update.second_moment, change=broken
    )
    assert [finding.check for finding in judge(evidence).findings] == ["finiteness"]
