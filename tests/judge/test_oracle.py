"""Cells are compared with the oracle, which shares no line with the code under test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.run.record_file import digest_of_choices
from harness.core.run.records import ChoiceSeen, FollowedSeen, OracleRecord, RankRecord
from harness.core.run.tensor_records import Fingerprint
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, judge, run_of, with_oracle

CHOICE = ChoiceSeen(step=0, layer=1, micro_batch=0, experts=[[0]])


def of(**layout: int) -> CellEvidence:
    """A cell that is compared with the oracle, as its control is."""
    _, evidence = run_of([config_of("reference", tp=2, **layout)])
    with_oracle(evidence)
    return next(item for item in evidence.values() if item.control is not None)


def record_of(evidence: CellEvidence) -> RankRecord:
    assert evidence.oracle is not None and evidence.oracle.record is not None
    return evidence.oracle.record


def scale_gradients(record: RankRecord, factor: float) -> None:
    """As a wrong factor in their reduction does."""
    for seen in record.parameters:
        seen.gradient = Fingerprint(
            norm_sq=seen.gradient.norm_sq * factor**2,
            projections=[value * factor for value in seen.gradient.projections],
        )
    for step in record.steps:
        assert step.grad_norm is not None
        step.grad_norm *= factor


def test_a_clean_cell_and_its_control_pass() -> None:
    cell = of()
    assert cell.control is not None
    for one in (cell, cell.control):
        assert (one.origin, judge(one).outcome) == ("oracle", Outcome.PASS)


def test_what_is_wrong_on_one_rank_too_fails_with_its_ratio() -> None:
    cell = of()
    assert cell.control is not None
    for one in (cell, cell.control):
        for record in one.records.values():
            scale_gradients(record, 1.01)
        verdict = judge(one)
        assert (verdict.outcome, verdict.lanes[Lane.NUMERICS]) == (Outcome.FAIL, LaneVerdict.FAIL)
        (norm,) = (finding.message for finding in verdict.findings if finding.check == "grad_norm")
        assert "oracle" in norm and "the ratio is 1.01" in norm


def test_a_control_that_failed_decides_nothing() -> None:
    cell = of()
    assert cell.control is not None
    scale_gradients(cell.control.records[0], 2.0)
    assert (judge(cell.control).outcome, judge(cell).outcome) == (Outcome.FAIL, Outcome.PASS)


def without_layer(record: RankRecord) -> None:
    record.activations.pop()


def without_document(record: RankRecord) -> None:
    record.steps[0].documents.popitem()


def without_step(record: RankRecord) -> None:
    record.steps.pop()


def without_norm(record: RankRecord) -> None:
    record.steps[1].grad_norm = None


def without_update(record: RankRecord) -> None:
    record.parameters[0].update = None


def without_second_training(record: RankRecord) -> None:
    record.legs = []


def without_distance(record: RankRecord) -> None:
    assert record.legs[0].training is not None
    record.legs[0].training.apart.popitem()


def without_number(record: RankRecord) -> None:
    record.parameters[0].gradient.norm_sq = float("nan")


@pytest.mark.parametrize(
    "change",
    [
        without_layer,
        without_document,
        without_step,
        without_norm,
        without_update,
        without_second_training,
        without_distance,
        without_number,
    ],
)
def test_an_oracle_that_lacks_something_is_no_pass(change: Callable[[RankRecord], None]) -> None:
    cell = of()
    change(record_of(cell))
    verdict = judge(cell)
    assert verdict.outcome is not Outcome.PASS
    assert "oracle.json" in verdict.reason or verdict.outcome is Outcome.FAIL


def missing(oracle: OracleRecord) -> None:
    return None


def of_another_cell(oracle: OracleRecord) -> OracleRecord:
    return replace(oracle, cell="tp1-pp1-cp1-sft-00000000")


def of_another_model(oracle: OracleRecord) -> OracleRecord:
    return replace(oracle, built=[replace(one, values={**one.values, "num_layers": "9"}) for one in oracle.built])


def broken(oracle: OracleRecord) -> OracleRecord:
    return replace(oracle, record=None, failed="Traceback\nKeyError: 'decoder'")


def empty(oracle: OracleRecord) -> OracleRecord:
    return replace(oracle, record=None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (missing, "oracle.json: it is missing, so there is nothing to compare the cell with"),
        (of_another_cell, "oracle.json: it belongs to cell tp1-pp1-cp1-sft-00000000"),
        (of_another_model, "oracle.json: its model is not the one that upstream built on rank 0"),
        (broken, "oracle.json: the oracle failed, which is a defect of the harness: KeyError: 'decoder'"),
        (empty, "oracle.json: it must hold numbers, or one reason why it has none"),
    ],
)
def test_without_its_oracle_a_cell_is_an_error_that_says_why(
    change: Callable[[OracleRecord], OracleRecord | None], why: str
) -> None:
    cell = of()
    assert cell.oracle is not None
    cell.oracle = change(cell.oracle)
    verdict = judge(cell)
    assert (verdict.outcome, why in verdict.reason) == (Outcome.ERROR, True), verdict.reason


def test_choices_that_the_oracle_did_not_follow_are_no_evidence() -> None:
    evidence = of()
    assert evidence.oracle is not None and evidence.oracle.choices == ""
    evidence.oracle.choices = digest_of_choices([RankRecord(**vars(evidence.records[0]) | {"choices": [CHOICE]})])
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "oracle.json: it followed other choices of routers than the ranks recorded" in verdict.reason


def test_the_digest_is_of_every_choice_on_every_rank() -> None:
    one, other = (
        RankRecord(cell="", rank=0, place=Coordinates(tp=0, cp=0, dp=0, pp=0), choices=[replace(CHOICE, experts=[[n]])])
        for n in (0, 1)
    )
    digests = {digest_of_choices(records) for records in ([one, other], [other, one], [one], [other])}
    assert len(digests) == 4


def test_scores_that_are_not_finite_are_named() -> None:
    evidence = of()
    record_of(evidence).followed = [
        FollowedSeen(step=0, layer=1, shortfall=math.nan, rounding=0.1, document=0, position=0, expert=0)
    ]
    assert "the shortfall of scores of layer 1 is nan" in judge(evidence).reason
