from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.run.records import RankRecord
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required import states
from harness.judge.required.audit import incomplete
from harness.judge.required.expected import Expected
from tests.judge.simulator import config_of, evidence_for


def cell(resume: str = "same", **layout: int) -> CellEvidence:
    return evidence_for(replace(config_of("sft", **layout), trainer="megatron", resume=resume))


def later(evidence: CellEvidence) -> CellEvidence:
    assert evidence.resumed is not None
    return evidence.resumed


def problems_of(evidence: CellEvidence, rank: int = 0) -> list[str]:
    return list(states.problems(Expected(evidence), evidence.records[rank]))


def disagreements(evidence: CellEvidence) -> list[str]:
    return list(states.disagreements(Expected(evidence), evidence.records))


@pytest.mark.parametrize("resume", ["same", "tp1-pp4"])
def test_both_parts_of_a_right_cell_are_complete(resume: str) -> None:
    evidence = cell(resume, tp=2, pp=2)
    for part in (evidence, later(evidence)):
        assert [problem for rank in range(4) for problem in problems_of(part, rank)] == disagreements(part) == []
        assert incomplete(part) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda record: record.states.pop(), "states: recorded after steps [1], expected after [1, 2]"),
        (lambda record: record.states.reverse(), "states: recorded after steps [2, 1], expected after [1, 2]"),
        (
            lambda record: record.states[0].parameters.append(record.states[0].parameters[0]),
            "states: after step 1: embedding.word_embeddings.weight is listed twice",
        ),
        (lambda record: setattr(record.states[0], "random", ""), "states: after step 1: random is ''"),
        (lambda record: setattr(record.states[1], "random", "x"), "states: after step 2: random is 'x'"),
        (
            lambda record: setattr(record.states[1].parameters[3], "digest", ""),
            "states: after step 2: digests are missing",
        ),
    ],
)
def test_what_a_rank_must_record_in_the_same_layout(change: Callable[[RankRecord], object], problem: str) -> None:
    for part in (cell(), later(cell())):
        change(part.records[0])
        assert problems_of(part)[0] == problem
        assert f"record of rank 0: {problem}" in incomplete(part)


def test_in_another_layout_there_are_no_digests_and_no_random_states() -> None:
    part = later(cell("tp2-pp1", pp=2))
    part.records[0].states[0].parameters[0].digest = "bits"
    part.records[0].states[0].random = "state"
    assert problems_of(part) == [
        "states: after step 1: digests are present",
        "states: after step 1: random is 'state'",
    ]


def test_the_part_that_saves_has_the_parameters_of_step_0() -> None:
    evidence = cell(tp=2)
    held = evidence.records[0].states[0].parameters
    held[1].sharded = not held[1].sharded
    assert problems_of(evidence) == ["states: after step 1: parameters are not those of step 0"]


def test_ranks_of_a_stage_hold_the_same_parameters() -> None:
    part = later(cell("tp2", dp=2))
    held = part.records[1].states[0].parameters
    held[1].sharded = not held[1].sharded
    assert disagreements(part) == ["record of rank 1: states: parameters after step 1 are not those of rank 0"]


@pytest.mark.parametrize(("saves", "what"), [(True, "not loaded"), (False, "not saved")])
def test_what_is_saved_is_loaded(saves: bool, what: str) -> None:
    evidence = cell("tp1-pp1", tp=2)
    part = later(evidence) if saves else evidence
    for record in part.records.values():
        record.states[0].parameters = record.states[0].parameters[1:]
    assert disagreements(later(evidence)) == [f"states: embedding.word_embeddings.weight after step 1 is {what}"]


def test_cells_that_do_not_resume_record_no_state() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].states = cell().records[0].states
    assert problems_of(evidence) == ["states: recorded after steps [1, 2], expected after []"]
