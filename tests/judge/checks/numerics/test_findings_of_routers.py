"""Findings about routers, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.tolerances import Bound
from harness.features.experts import checks
from harness.features.experts.checks import own_aux_loss
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of
from tests.judge.parts import with_routers

cases = Cases()


@cases(checks.aux_loss)
def a_value_that_no_known_mistake_explains() -> CellEvidence:
    evidence = with_routers(pp=2, dp=2)
    evidence.records[3].routers[1].aux_loss *= 1.01  # type: ignore[operator]
    return evidence


@cases(checks.aux_loss)
def a_value_that_was_not_recorded() -> CellEvidence:
    evidence = with_routers()
    evidence.records[0].routers[0].aux_loss = None
    return evidence


@cases(checks.aux_loss)
def values_with_padding_counted() -> CellEvidence:
    evidence = with_routers(masked=True)
    moe = evidence.cell.config.model.moe
    assert moe is not None
    for seen in evidence.records[0].routers:
        seen.aux_loss = own_aux_loss(moe, [*seen.real, *seen.padding])
    return evidence


def rows_as_one(*, padding: bool) -> CellEvidence:
    evidence = with_routers(aux_loss="seq_aux_loss", micro_batch_size=2, masked=True)
    moe = evidence.cell.config.model.moe
    assert moe is not None
    for seen in evidence.records[0].routers:
        seen.aux_loss = own_aux_loss(moe, seen.real + (seen.padding if padding else []), kind="aux_loss")
    return evidence


@cases(checks.aux_loss)
def rows_taken_for_one() -> CellEvidence:
    return rows_as_one(padding=False)


@cases(checks.aux_loss)
def rows_taken_for_one_with_padding() -> CellEvidence:
    return rows_as_one(padding=True)


def with_weights(factor: float, **layout: int) -> CellEvidence:
    evidence = with_routers(**layout)
    for record in evidence.records.values():
        for seen in record.routers:
            seen.aux_weighted *= factor  # type: ignore[operator]
    return evidence


@cases(checks.aux_loss)
def weights_times_the_context_parallel_size() -> CellEvidence:
    return with_weights(2.0, cp=2, pp=2)


@cases(checks.aux_loss)
def weights_times_another_factor_in_the_second_layer() -> CellEvidence:
    evidence = with_routers(dp=2)
    for record in evidence.records.values():
        for seen in record.routers:
            seen.aux_weighted *= 1.37 if seen.layer == 2 else 1.0  # type: ignore[operator]
    return evidence


@cases(checks.aux_loss)
def a_weight_that_was_not_recorded() -> CellEvidence:
    evidence = with_routers()
    for seen in evidence.records[0].routers:
        seen.aux_weighted = None
    return evidence


@cases(checks.aux_loss)
def values_of_a_first_step_that_is_not_whole() -> CellEvidence:
    evidence = with_weights(2.0)
    evidence.records[0].steps = evidence.records[0].steps[1:]
    return evidence


@cases(checks.aux_loss)
def weights_of_the_only_step() -> CellEvidence:
    evidence = with_weights(2.0, cp=2)
    evidence.cell = replace(
        evidence.cell,
        config=replace(evidence.cell.config, train=replace(evidence.cell.config.train, steps=1)),
    )
    return replace(evidence)


@cases(checks.aux_loss)
def nothing_wrong_and_no_experts() -> CellEvidence:
    return of()


@cases(checks.aux_loss)
def padding_that_is_masked_everywhere() -> CellEvidence:
    return with_routers(masked=True)


@cases(checks.aux_loss)
def rows_taken_for_one_by_an_exact_bound() -> CellEvidence:
    evidence = rows_as_one(padding=False)
    exact = Bound(value=0.0, origin="the matrix")
    evidence.tolerances = replace(evidence.tolerances, aux_loss=exact)
    return evidence


@cases(checks.aux_loss)
def weights_that_are_zero() -> CellEvidence:
    return with_weights(0.0)


@cases(checks.aux_loss)
def weights_that_are_off_by_exactly_the_bound() -> CellEvidence:
    evidence = with_weights(0.0)
    evidence.tolerances = replace(evidence.tolerances, aux_loss=Bound(value=1.0, origin="the matrix"))
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_numerics_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
