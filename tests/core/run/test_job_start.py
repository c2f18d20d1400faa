from __future__ import annotations

import pytest

from harness.core.run.job_start import Claim, JobStart, was_cut_off
from harness.core.run.records import CellResult, RankEnding


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
