"""The verdict on a cell that continues from a checkpoint is one on both parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.packing.options import PackingOptions
from harness.core.run.records import Failure, Progress, RankEnding
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.weight import weight_of
from tests.judge.simulator import computed, config_of, drop_params, evidence_for, judge


@pytest.fixture
def cell() -> CellEvidence:
    return evidence_for(replace(config_of("sft", tp=2), trainer="megatron", resume="same"))


def later(evidence: CellEvidence) -> CellEvidence:
    assert evidence.resumed is not None
    return evidence.resumed


def test_both_parts_pass(cell: CellEvidence) -> None:
    verdict = judge(cell)
    assert (verdict.outcome, verdict.findings, verdict.reason) == (Outcome.PASS, [], "")


def test_a_part_of_which_nothing_is_compared_makes_the_lane_partial() -> None:
    options = PackingOptions(calculate_per_token_loss=False)
    cell = evidence_for(replace(config_of("sft", tp=2), trainer="megatron", resume="same", options=options))
    cell.oracle = computed(cell)
    verdict = judge(cell)
    assert (verdict.outcome, verdict.lanes[Lane.NUMERICS]) == (Outcome.PASS, LaneVerdict.PARTIAL)
    rests_on = weight_of(cell)
    assert rests_on.reference.startswith("the oracle; after the resume the control, since the oracle does not model")
    assert rests_on.not_compared == (
        "after the resume: compared with nothing, since the control has other rows: all steps"
    )


def test_a_cell_that_did_not_continue_is_undecided(cell: CellEvidence) -> None:
    cell.resumed = None
    verdict = judge(cell)
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, "it did not continue from its checkpoint")
    assert LaneVerdict.PASS not in verdict.lanes.values()


def test_a_failure_before_the_checkpoint_comes_first(cell: CellEvidence) -> None:
    drop_params(cell.records[1])
    drop_params(later(cell).records[1])
    verdict = judge(cell)
    assert verdict.outcome is Outcome.FAIL
    assert not any("part" in finding.where for finding in verdict.findings)


def test_metadata_is_judged_after_the_resume_too(cell: CellEvidence) -> None:
    drop_params(later(cell).records[1])
    verdict = judge(cell)
    assert (verdict.outcome, verdict.lanes[Lane.METADATA]) == (Outcome.FAIL, LaneVerdict.FAIL)
    first = verdict.findings[0]
    assert first.message.startswith("resumed: ")
    assert (first.where["part"], first.where["step"], first.where["rank"]) == ("resumed", 1, 1)


def test_an_exception_of_upstream_after_the_resume_is_a_failure(cell: CellEvidence) -> None:
    part = later(cell)
    for record in part.records.values():
        record.ended, record.states, record.steps = "raised", [], []
        record.progress = Progress(leg="training", step=1, phase="setup")
        record.failure = Failure(
            type="KeyError",
            message="'optimizer'",
            traceback="",
            time=101.0,
            frames=["megatron/training/checkpointing.py:1700 in load_checkpoint"],
        )
    assert part.result is not None
    ranks = [RankEnding(rank=rank, ended="raised", exit_code=1) for rank in range(2)]
    part.result = replace(
        part.result, status="failed", reason="2 of 2 ranks did not complete", ranks=ranks, steps_s=0.0
    )
    verdict = judge(cell)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.findings[0].message.startswith("resumed: ")
    assert "KeyError: 'optimizer'" in verdict.findings[0].message


def test_a_rank_that_is_killed_after_the_resume_leaves_the_cell_undecided(cell: CellEvidence) -> None:
    part = later(cell)
    part.records[1].ended = "killed"
    part.records[1].progress = Progress(leg="training", step=1, phase="forward")
    assert part.result is not None
    ranks = [RankEnding(rank=0, ended="completed", exit_code=0), RankEnding(rank=1, ended="killed", exit_code=-9)]
    part.result = replace(part.result, status="failed", reason="1 of 2 ranks did not complete", ranks=ranks)
    verdict = judge(cell)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason.startswith("resumed: ")
    assert LaneVerdict.PASS not in verdict.lanes.values()


def test_records_of_the_first_part_are_not_those_of_the_second(cell: CellEvidence) -> None:
    """What the launcher would see if the second part had trained from the start again."""
    part = later(cell)
    part.records = cell.records
    verdict = judge(cell)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason.startswith(
        "resumed: record of rank 0: its ending is completed, but it contains steps [0, 1] of [1]"
    )


def test_a_failure_is_that_of_the_resumed_part(cell: CellEvidence) -> None:
    for record in later(cell).records.values():
        record.steps[0].grad_norm = record.reported[0].grad_norm = 9.0
    verdict = judge(cell)
    assert (verdict.outcome, verdict.reason, verdict.usable) == (Outcome.FAIL, "", True)
    assert list(verdict.lanes.values()) == [LaneVerdict.PASS, LaneVerdict.FAIL, LaneVerdict.SKIP]


def test_records_of_another_run_are_not_usable(cell: CellEvidence) -> None:
    later(cell).records[0].run_id = "another"
    verdict = judge(cell)
    assert (verdict.outcome, verdict.usable) == (Outcome.ERROR, False)
    assert verdict.reason.startswith("resumed: record of rank 0: it belongs to run another")


def test_warnings_of_both_parts_are_kept(cell: CellEvidence) -> None:
    """Padded offsets that are copies of the plain ones."""
    for part in (cell, later(cell)):
        for record in part.records.values():
            for params in record.packed_params:
                params.cu_seqlens_q_padded, params.cu_seqlens_kv_padded = params.cu_seqlens_q, params.cu_seqlens_kv
                for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
                    params.forms[name] = replace(params.forms["cu_seqlens_q"], same_as=None)
    verdict = judge(cell)
    assert verdict.outcome is Outcome.PASS
    assert [(finding.check, finding.where.get("part")) for finding in verdict.findings] == [
        ("params_identity", None),
        ("params_identity", "resumed"),
    ]
