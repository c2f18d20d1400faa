from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.run.job_start import Claim, JobStart, started_again, was_cut_off
from harness.core.run.records import CellResult, CellStatus, ProcessEnd, RankEnding


@pytest.mark.parametrize(
    ("environment", "start"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "12"}, JobStart(job="12")),
        ({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2"}, JobStart(job="12", restart=2)),
        (
            {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"},
            JobStart(job="12_0"),
        ),
    ],
)
def test_a_start_is_identified_by_job_id_and_restart_count(environment: dict[str, str], start: JobStart | None) -> None:
    assert JobStart.of(environment) == start


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (JobStart(job="7", restart=2), None),
        (JobStart(job="7", restart=1), "restart 1 of job 7 has claimed the allocation already"),
        (JobStart(job="7", restart=0), "restart 1 of job 7 has claimed the allocation already"),
        (JobStart(job="8", restart=5), "job 7 has claimed the allocation: job 8 is a duplicate of it"),
    ],
)
def test_only_a_later_start_of_the_same_job_may_follow(start: JobStart, words: str | None) -> None:
    assert Claim(job="7", restart=1, order="x").refusal(start) == words


@pytest.mark.parametrize(
    ("status", "codes", "cut_off"),
    [
        ("failed", [-11, -15], False),  # it crashed; its parent ended the other rank
        ("failed", [-9, -15], False),  # the kernel ended it for its memory
        ("failed", [0, -15], False),  # it left without a word
        ("failed", [-11, None], False),  # the rank of another node had not begun
        ("failed", [-15, -15], True),  # the job was ended
        ("error", [-15, None], True),  # the other node was lost
        ("error", [-6, None], True),  # likewise, seen by NCCL's watchdog
        ("error", [28, -15], True),  # no space left on the disk
        ("error", [74, -15], True),  # the file system failed
    ],
)
@pytest.mark.parametrize("ended", ["killed", "missing"])
def test_an_attempt_whose_ranks_left_no_record_of_their_end_was_cut_off_unless_one_ended_by_itself(
    status: CellStatus, codes: list[int | None], ended: ProcessEnd, cut_off: bool
) -> None:
    ranks = [RankEnding(rank=rank, ended=ended, exit_code=code) for rank, code in enumerate(codes)]
    assert was_cut_off(CellResult(cell="a", attempt=1, status=status, ranks=ranks)) is cut_off


def test_an_attempt_that_a_later_start_of_its_job_closed_was_cut_off() -> None:
    closed = CellResult(cell="a", attempt=1, status="error", reason=started_again(JobStart(job="7", restart=1)))
    assert was_cut_off(closed)
    assert not was_cut_off(replace(closed, reason="16 ranks cannot be split over 3 nodes"))


@pytest.mark.parametrize(
    ("status", "ended", "cut_off"),
    [
        ("error", "missing", True),
        ("failed", "killed", True),
        ("failed", "raised", False),
        ("failed", "deadline", False),
        ("completed", "killed", False),
    ],
)
def test_an_attempt_was_cut_off_if_a_rank_left_no_record_of_its_end(status: str, ended: str, cut_off: bool) -> None:
    ranks = [RankEnding(rank=0, ended="completed"), RankEnding(rank=1, ended=ended)]
    assert was_cut_off(CellResult(cell="a", attempt=1, status=status, ranks=ranks)) is cut_off
