from __future__ import annotations

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.run.records import CellResult, Failure, Progress
from harness.judge.evidence.endings import Ending
from harness.judge.failures.classification import JobEnding, cause_of

PLACE = Coordinates(tp=0, cp=0, dp=0, pp=0)
UPSTREAM = ["harness/probe/run.py:110 in _model_legs", "megatron/core/models/gpt/gpt_model.py:90 in __init__"]
OURS = [
    "megatron/core/models/gpt/gpt_model.py:90 in forward",
    "harness/probe/hooks/layers.py:41 in _before_output",
]


def ending(how: str, *, leg: str = "training", phase: str = "forward", **facts: object) -> Ending:
    return Ending(rank=0, place=PLACE, ended=how, progress=Progress(leg=leg, phase=phase), **facts)  # type: ignore[arg-type]


def raised(frames: list[str], kind: str = "TypeError") -> Failure:
    return Failure(type=kind, message="no", traceback="", time=1.0, frames=frames)


@pytest.mark.parametrize("leg", ["start", "metadata", "training"])
def test_upstream_that_raises_while_it_builds_its_model_is_to_blame(leg: str) -> None:
    cause = cause_of([ending("raised", leg=leg, phase="setup", failure=raised(UPSTREAM))], None)
    assert cause is not None
    assert cause.blames_code


def test_a_defect_of_the_harness_says_so_and_asks_for_a_report() -> None:
    cause = cause_of([ending("raised", failure=raised(OURS, "IndexError"))], None)
    assert cause is not None
    assert cause.domain == "harness"
    assert cause.message.startswith("defect of the harness, please report it with the log of rank 0: rank 0 (stage 0")
    assert cause.message.endswith("IndexError: no, at harness/probe/hooks/layers.py:41 in _before_output")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("TIMEOUT", ": job time limit (job state TIMEOUT)"),
        ("CANCELLED by 1000", ": cancelled (job state CANCELLED by 1000)"),
        (None, "; cause unknown"),
        ("COMPLETED", "; cause unknown"),
    ],
)
def test_a_rank_that_its_job_ended_says_how_where_the_scheduler_does(state: str | None, says: str) -> None:
    cause = cause_of([ending("killed")], None, JobEnding(state=state))
    assert cause is not None
    assert cause.message == (
        f"rank 0 (stage 0, tp 0, cp 0, dp 0) was terminated in the training leg, step 0, micro-batch 0, forward{says}"
    )


@pytest.mark.parametrize(
    ("code", "domain"), [(-11, "code"), (3, "code"), (28, "infrastructure"), (74, "infrastructure")]
)
def test_a_process_that_could_not_write_its_record_did_not_crash(code: int, domain: str) -> None:
    cause = cause_of([ending("crashed", exit_code=code)], None)
    assert cause is not None
    assert cause.domain == domain


def test_an_attempt_that_the_supervisor_gave_up_never_blames_the_code() -> None:
    result = CellResult(cell="cell", attempt=1, status="error")
    cause = cause_of([ending("raised", failure=raised(UPSTREAM))], result)
    assert cause is not None
    assert cause.domain == "infrastructure"
