"""The outcome of a cell that did not complete and the class of its failure are one decision."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.outcomes import Domain, Outcome
from harness.core.run.records import Failure, Progress, RankEnding
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.failures.classification import JobEnding, LogTail
from tests.judge.checks.numerics.test_ended import IN_CODE, OUTER
from tests.judge.failures.test_classification import text_of
from tests.judge.simulator import config_of, evidence_for, judge

RANKS = 2


class Rank(NamedTuple):
    """How one rank ended, and what it left."""

    ended: str  # completed | raised | died | deadline | missing
    leg: str = "training"
    error: tuple[str, str, str] = ("RuntimeError", "64 vs 32", "")  # type, message, errno
    frames: tuple[str, ...] = (IN_CODE,)
    time: float = 1.0
    code: int | None = None
    hang: str | None = None
    log: str = ""


ERRORS = [
    ("RuntimeError", "64 vs 32", ""),
    ("OSError", "[Errno 116] Stale file handle", "ESTALE"),
    ("OSError", "[Errno 12] Cannot allocate memory", "ENOMEM"),
    *[
        (type_name, message, "")
        for name in ("lost-peer", "lost-peer.store", "gpu-hardware", "non-finite", "gpu-out-of-memory", "killed.worker")
        for type_name, _, message in [
            text_of(f"{name}{'.gloo' if name == 'lost-peer' else ''}.exception").partition(": ")
        ]
    ],
]
LOGS = ["", *(text_of(f"{name}.log") for name in ("nccl-timeout", "gpu-hardware.xid79", "non-finite", "configuration"))]
DUMPS = [(IN_CODE,), ("harness/runtime/rank.py:70 in _run",)]
ranks = st.builds(
    Rank,
    ended=st.sampled_from(["completed", "raised", "died", "deadline", "missing"]),
    leg=st.sampled_from(["start", "metadata", "training", "isolation", "end"]),
    error=st.sampled_from(ERRORS),
    frames=st.sampled_from([*DUMPS, ()]),
    time=st.sampled_from([1.0, 2.0]),
    code=st.sampled_from([None, 1, 28, 74, -6, -9, -11, -15]),
    hang=st.sampled_from([None, "all_reduce"]),
    log=st.sampled_from(LOGS),
)


def ended_as(*found: Rank, first: int | None = None, state: str | None = None, status: str = "failed") -> CellEvidence:
    """Evidence of a cell whose ranks ended so; its metadata are right."""
    evidence = evidence_for(config_of("reference", tp=RANKS))
    result = evidence.result
    assert result is not None
    result.status, result.first_failure_rank, result.ranks = status, first, []  # type: ignore[assignment]
    for number, rank in enumerate(found):
        process = RankEnding(rank=number, ended="completed", exit_code=0)
        result.ranks.append(process)
        if rank.ended == "completed":
            continue
        record = evidence.records[number]
        record.steps, record.parameters, record.activations, record.legs = [], [], [], []
        record.progress = Progress(leg=rank.leg, phase="forward")  # type: ignore[arg-type]
        record.ended, process.ended, process.exit_code = "running", "killed", rank.code
        if rank.ended == "raised":
            kind, message, errno = rank.error
            failure = Failure(type=kind, message=message, traceback="", time=rank.time, frames=[*rank.frames])
            failure.errno, record.failure = errno, failure
            record.ended, process.ended, process.exit_code = "raised", "raised", 1
        elif rank.ended == "deadline":
            process.ended, process.stack, process.hang = "deadline", [*OUTER, *rank.frames], rank.hang
            process.still_s, process.exit_code = 900.0, -9
        elif rank.ended == "missing":
            del evidence.records[number]
            process.ended = "missing"
    evidence.logs = {number: LogTail(text=rank.log) for number, rank in enumerate(found) if rank.log}
    evidence.job = JobEnding(state=state)
    return evidence


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ranks, min_size=RANKS, max_size=RANKS),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, "FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"]),
    st.sampled_from(["failed", "error"]),
)
def test_a_cell_fails_if_and_only_if_its_class_blames_the_code(
    found: list[Rank], first: int | None, state: str | None, status: str
) -> None:
    evidence = ended_as(*found, first=first, state=state, status=status)
    if all(rank.ended == "completed" for rank in found) or not evidence.records:
        return
    verdict, known = judge(evidence), evidence.failure_class
    assert known is not None
    assert (verdict.outcome is Outcome.FAIL) == (known.domain == Domain.CODE), (verdict, known)
    assert verdict.outcome in (Outcome.FAIL, Outcome.ERROR)


def judged(evidence: CellEvidence) -> tuple[str, str, str]:
    """Outcome, and name and domain of the class."""
    assert evidence.failure_class is not None
    return judge(evidence).outcome.value, evidence.failure_class.name, evidence.failure_class.domain


def test_a_rank_that_torch_aborts_because_its_watchdog_gave_up_blames_nobody() -> None:
    aborted = Rank("died", code=-6, log=text_of("nccl-timeout.log"))
    evidence = ended_as(aborted, aborted)
    assert judged(evidence) == ("ERROR", "nccl-timeout", "unknown")
    assert "died of signal 6 in the training leg" in judge(evidence).reason
    assert judge(evidence).reason.endswith(": NCCL time-out")
    assert judged(ended_as(Rank("died", code=-6), aborted)) == ("FAIL", "native-crash", "code")


def test_a_killed_rank_is_the_cause_of_its_aborted_peer() -> None:
    killed, aborted = Rank("died", code=-9), Rank("died", code=-6, log=text_of("lost-peer.nccl.log"))
    evidence = ended_as(aborted, killed, first=0)
    assert judged(evidence) == ("ERROR", "killed", "unknown")
    assert "rank 1 (stage 0, tp 1, cp 0, dp 0) was killed from outside (exit code -9)" in judge(evidence).reason


def test_a_lost_node_excuses_a_hang() -> None:
    waits = [Rank("deadline", hang="all_reduce"), Rank("deadline")]
    assert judged(ended_as(*waits)) == ("FAIL", "hang", "code")
    assert judged(ended_as(*waits, state="NODE_FAIL")) == ("ERROR", "node-failure", "infrastructure")


def test_a_line_in_the_log_of_a_killed_rank_does_not_blame_the_code() -> None:
    killed = Rank("died", code=-9, log=text_of("non-finite.log"))
    assert judged(ended_as(killed, Rank("completed"))) == ("ERROR", "non-finite", "unknown")
    crashed = killed._replace(code=-11)
    assert judged(ended_as(crashed, Rank("completed"))) == ("FAIL", "non-finite", "code")


def test_a_crash_outside_the_legs_does_not_blame_the_code() -> None:
    crashed = Rank("died", code=-11)
    assert judged(ended_as(crashed, Rank("completed"))) == ("FAIL", "native-crash", "code")
    for leg in ("start", "end"):
        assert judged(ended_as(crashed._replace(leg=leg), Rank("completed")))[::2] == ("ERROR", "unknown")


def test_the_rank_that_ended_the_cell_comes_before_the_clocks_of_nodes() -> None:
    """The clock of rank 1's node is ahead, so its exception seems to be later than the one that followed from it."""
    stale = Rank("raised", error=("OSError", "[Errno 116] Stale file handle", "ESTALE"), time=2.0)
    followed = Rank("raised", error=("KeyError", "'batch'", ""), time=1.0)
    assert judged(ended_as(followed, stale, first=1)) == ("ERROR", "storage-error", "infrastructure")
    assert judged(ended_as(followed, stale, first=0)) == ("FAIL", "python-exception", "code")
    lost = followed._replace(error=("RuntimeError", "Connection closed by peer", ""))
    assert judged(ended_as(lost, stale, first=0)) == ("ERROR", "storage-error", "infrastructure")


def test_too_many_open_files_are_said_as_such_with_what_to_do_wherever_they_are_raised() -> None:
    for error in (
        ("OSError", "[Errno 24] Too many open files: '/data/x.bin'", "EMFILE"),
        ("OSError", "[Errno 23] Too many open files in system", "ENFILE"),
        ("RuntimeError", text_of("too-many-open-files.gloo.exception").partition(": ")[2].strip(), ""),
    ):
        evidence = ended_as(Rank("raised", error=error), Rank("completed"))
        assert judged(evidence) == ("ERROR", "too-many-open-files", "infrastructure")
        reason = judge(evidence).reason
        assert f"{error[0]}: {error[1]}" in reason
        assert "ulimit -n 65536" in reason


def test_numbers_that_went_wrong_on_a_failing_machine_blame_nobody() -> None:
    kind, _, message = text_of("gpu-hardware.exception").partition(": ")
    broken = Rank("raised", error=(kind, message, ""), time=1.0)
    nan = Rank("raised", error=("RuntimeError", "found NaN in local grad norm", ""), time=2.0)
    assert judged(ended_as(broken, nan, first=0)) == ("ERROR", "non-finite", "unknown")
    assert judged(ended_as(nan, Rank("completed"))) == ("FAIL", "non-finite", "code")
