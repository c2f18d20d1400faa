"""Findings of cells that resume, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.run.tensor_records import StoredParameter
from harness.features.resume import checks
from harness.judge.checks import trainer
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases
from tests.judge.simulator import config_of, evidence_for

cases = Cases()
QKV = "decoder.layers.2.self_attention.linear_qkv.weight"
NORM = "decoder.layers.2.input_layernorm.weight"


def cell(resume: str = "same", *, steps: int = 3, **layout: int) -> CellEvidence:
    """The resumed part of a right cell."""
    config = config_of("sft", **layout)
    train = replace(config.train, steps=steps, save_step=steps - 1)
    evidence = evidence_for(replace(config, trainer="megatron", resume=resume, train=train)).resumed
    assert evidence is not None
    return evidence


def stored(evidence: CellEvidence, name: str, rank: int, number: int = 0) -> StoredParameter:
    return next(item for item in evidence.records[rank].states[number].parameters if item.name == name)


@cases(checks.resumed)
def counters_of_the_second_rank() -> CellEvidence:
    evidence = cell(pp=2)
    evidence.records[1].states[0].updates = -1
    evidence.records[1].states[1].scheduled = 7
    return evidence


@cases(checks.resumed)
def only_the_schedule() -> CellEvidence:
    evidence = cell(pp=2)
    evidence.records[1].states[1].scheduled = 7
    return evidence


@cases(checks.resumed)
def a_copy_of_another_replica() -> CellEvidence:
    evidence = cell("tp2", dp=2)
    stored(evidence, NORM, 1).second_moment.norm_sq = 3.0
    return evidence


@cases(checks.resumed)
def bits_and_random_numbers_of_the_second_stage() -> CellEvidence:
    evidence = cell(pp=2)
    for name in (QKV, NORM):
        stored(evidence, name, 1).digest = "others"
    evidence.records[1].states[0].random = "others"
    return evidence


@cases(checks.resumed)
def moments_in_another_layout() -> CellEvidence:
    evidence = cell("tp1-pp2", tp=2)
    stored(evidence, QKV, 1).first_moment.projections[0] += 1e-3
    return evidence


@cases(checks.resumed)
def a_tensor_that_is_not_loaded_before_one_that_is_wrong() -> CellEvidence:
    evidence = cell("tp1-pp2", tp=2)
    del evidence.records[0].states[0].parameters[0]
    stored(evidence, QKV, 1).weight.norm_sq *= 1.5
    return evidence


@cases(checks.resumed)
def a_wrong_tensor_beside_a_rank_without_a_state() -> CellEvidence:
    evidence = cell("tp1-pp2", tp=2)
    evidence.records[0].states.clear()
    stored(evidence, QKV, 1).weight.norm_sq *= 1.5
    return evidence


@cases(checks.resumed)
def ranks_that_the_first_part_does_not_have() -> CellEvidence:
    evidence = cell(pp=2)
    assert evidence.saved is not None
    del evidence.saved.records[0].states[:]
    stored(evidence, QKV, 1).digest = "others"
    return evidence


@cases(checks.resumed)
def a_rank_of_the_first_part_is_missing() -> CellEvidence:
    evidence = cell(pp=2)
    assert evidence.saved is not None
    del evidence.saved.records[0]
    for record in evidence.records.values():
        record.steps.clear()
    stored(evidence, QKV, 1).digest = "others"
    return evidence


@cases(checks.resumed)
def a_loss_and_a_norm() -> CellEvidence:
    evidence = cell(pp=2)
    (step,) = evidence.records[1].steps
    step.loss_sum, step.grad_norm = 1.5, 2.5
    return evidence


@cases(checks.resumed)
def losses_of_documents() -> CellEvidence:
    evidence = cell(pp=2)
    (step,) = evidence.records[1].steps
    for document in (5, 3):
        step.documents[document].loss_sum = 1.5
    return evidence


def line(evidence: CellEvidence, **fields: str) -> CellEvidence:
    """With a change of the line that the last rank prints at the end."""
    told = evidence.records[max(evidence.records)].reported[-1]
    told.printed = {**(told.printed or {}), **{name.replace("_", " "): text for name, text in fields.items()}}
    return evidence


def trained(*, steps: int = 2, **layout: int) -> CellEvidence:
    config = config_of("sft", **layout)
    return evidence_for(replace(config, trainer="megatron", train=replace(config.train, steps=steps)))


@cases(trainer.printed)
def the_line_of_the_end_after_a_step_without_one() -> CellEvidence:
    return line(trained(steps=3), lm_loss="1.000000E+00", grad_norm="9.000")


@cases(trainer.printed)
def the_rows_of_a_cell_of_one_step() -> CellEvidence:
    return line(trained(steps=1), global_batch_size="7")


@cases(trainer.printed)
def a_loss_that_is_no_number() -> CellEvidence:
    return line(trained(), lm_loss="nonenonenone")


@cases(trainer.printed)
def a_loss_of_a_step_that_was_skipped() -> CellEvidence:
    """Upstream leaves it out of the mean, whose other steps are then not all."""
    evidence = trained()
    evidence.records[0].reported[0].skipped = 1
    told = evidence.records[0].reported[0]
    told.printed = {**(told.printed or {}), "number of skipped iterations": "1"}
    return line(evidence, lm_loss="1.000000E+00", number_of_skipped_iterations="1")


@cases(trainer.printed)
def a_loss_that_is_not_finite() -> CellEvidence:
    evidence = trained()
    evidence.records[0].reported[0].loss = math.inf
    return line(evidence, lm_loss="1.000000E+00")


@cases(trainer.printed)
def a_step_whose_loss_is_not_reported() -> CellEvidence:
    evidence = trained()
    evidence.records[0].reported[0].loss = None
    return line(evidence, lm_loss="1.000000E+00")


@pytest.mark.parametrize("check", cases.of)
def test_a_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}_resumes.txt", cases.text(check))


@pytest.mark.parametrize(
    ("off", "right"), [(0.0, True), (0.75, True), (-0.75, True), (0.85, False), (-0.85, False), (2.0, False)]
)
def test_a_loss_is_printed_to_its_last_digit(off: float, right: bool) -> None:
    """Half of a digit, and 0.3 for the sum of two losses in fp32: 2 x 2^-23 x 0.0125 = 0.3e-8."""
    evidence = trained(pp=2)
    (first, second) = evidence.records[1].reported
    for told in (first, second):
        told.loss = 0.0125
        evidence.records[1].steps[told.step].loss_sum = None
        told.printed = {**(told.printed or {}), "lm loss": "1.250000E-02"}
    second.loss = 0.0125 + 2 * off * 1e-8
    assert (trainer.printed(evidence) == []) is right


@pytest.mark.parametrize(("text", "right"), [("5.000000E-07", True), ("5.000001E-07", False)])
def test_a_loss_of_zero_may_be_off_by_exactly_half_of_its_last_digit(text: str, right: bool) -> None:
    evidence = trained()
    for told in evidence.records[0].reported:
        told.loss = 0.0
        told.printed = {**(told.printed or {}), "lm loss": "0.000000E+00"}
    assert (trainer.printed(line(evidence, lm_loss=text)) == []) is right
