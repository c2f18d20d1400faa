from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.outcomes import Domain, Retry, Role
from harness.core.run.records import Failure, Progress
from harness.judge.evidence.endings import Ending
from harness.judge.failures import patterns as table
from harness.judge.failures.classification import (
    FailureClass,
    FailureEvidence,
    LogTail,
    classify,
    pattern_of_exception,
    patterns_of_log,
)
from harness.judge.failures.patterns import CLASSES, PATTERNS, Pattern
from tests.judge.checks.numerics.test_ended import IN_CODE, cut_off
from tests.judge.simulator import config_of, evidence_for

LOGS = Path(__file__).parents[1] / "logs"
SNIPPETS = sorted(LOGS.glob("*.txt"))
BY_NAME = {pattern.name: pattern for pattern in CLASSES}
LOST = "[gloo] Connection closed by peer [127.0.0.1]:8092"
NCCL = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5) ran for 6 milliseconds"


def snippet(path: Path) -> tuple[str, str, str]:
    """(class, kind, text) of a file <class>[.<detail>].<kind>.txt, whose first line names the source."""
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    assert head.startswith("# ")
    parts = path.name.split(".")
    return parts[0], parts[-2], text


def text_of(name: str) -> str:
    return snippet(LOGS / f"{name}.txt")[2]


def found_in(kind: str, text: str) -> set[str]:
    if kind == "log":
        return {pattern.name for pattern, _ in patterns_of_log(text)}
    type_name, _, message = text.partition(": ")
    return {pattern_of_exception(type_name, message).name}


def ending(rank: int, ended: str, **facts: object) -> Ending:
    progress = Progress(leg="training", step=1, micro_batch=0, phase="forward")
    place = Coordinates(pp=0, dp=0, cp=0, tp=rank)
    return Ending(rank=rank, place=place, ended=ended, progress=progress, **facts)  # type: ignore[arg-type]


def late_rank(rank: int, hang: str | None, *frames: str) -> Ending:
    """A rank that had made no progress for long at the deadline."""
    stack = ("harness/runtime/rank.py:70 in _run", *(frames or (IN_CODE,)))
    return ending(rank, "deadline", hang=hang, stack=stack, stalled=True, exit_code=-9)


def raised(rank: int, message: str, time: float, type_name: str = "RuntimeError") -> Ending:
    failure = Failure(type=type_name, message=message, traceback="Traceback ...", time=time)
    return ending(rank, "raised", failure=failure, exit_code=1)


def classed(*endings: Ending, state: str | None = None, job_log: str = "", **logs: str) -> FailureClass:
    tails = {int(name.removeprefix("rank")): LogTail(text=text) for name, text in logs.items()}
    return classify(FailureEvidence(endings=endings, logs=tails, scheduler_state=state, job_log=job_log))


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda path: path.stem)
def test_a_real_text_gets_its_class_and_no_other_root(path: Path) -> None:
    name, kind, text = snippet(path)
    found = found_in(kind, text)
    assert name in found
    assert [other for other in found - {name} if BY_NAME[other].role == Role.ROOT] == []


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda path: path.stem)
def test_no_row_but_its_own_matches_a_text_by_a_looser_expression(path: Path) -> None:
    """Includes rows that the order of the table hides."""
    name, kind, text = snippet(path)
    roots = [pattern for pattern in PATTERNS if pattern.role == Role.ROOT and pattern.name != name]
    if kind == "log":
        cleaned = [table.PREFIX.sub("", line).strip() for line in text.splitlines()]
        assert [(row.name, line) for row in roots for line in cleaned if row.in_log(line)] == []
    else:
        assert [row.name for row in roots if row.in_exception(text)] == []


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_every_expression_of_a_row_has_a_text(pattern: Pattern) -> None:
    kinds = {kind for name, kind, _ in map(snippet, SNIPPETS) if name == pattern.name}
    assert kinds == {kind for kind, used in (("exception", pattern.exception), ("log", pattern.log)) if used}


def test_rows_are_unique_and_use_the_enums() -> None:
    assert len(BY_NAME) == len(CLASSES)
    for row in CLASSES:
        assert isinstance(row.domain, Domain)
        assert isinstance(row.role, Role)
        assert isinstance(row.retry_advice, Retry)
        assert row.advice.endswith(".")
        assert row.retry_advice != Retry.OTHER_NODES or row.domain == Domain.INFRASTRUCTURE


def test_every_class_is_in_the_documentation(root: Path) -> None:
    page = (root / "docs" / "failures.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Incomplete cells\n") : page.index("\n### Which component is at fault\n")]
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([^|]*) \| ([^|]*) \|$", section, re.M)
    assert sorted(rows) == sorted((row.name, f"{row.domain}, {row.role}", row.retry_advice) for row in CLASSES)


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ("OUT_OF_MEMORY", "host-out-of-memory"),
        ("OUT_OF_ME+", "host-out-of-memory"),
        ("NODE_FAIL", "node-failure"),
        ("PREEMPTED", "preemption"),
        ("TIMEOUT", "time-limit"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("BOOT_FAIL", "boot-failure"),
        ("FAILED", "killed"),
        ("COMPLETED", "killed"),
    ],
)
def test_the_state_of_the_job_names_what_killed_a_rank(state: str, name: str) -> None:
    found = classed(ending(0, "killed", exit_code=-9), ending(1, "killed", exit_code=-15), state=state)
    assert found.name == name
    assert (found.rank is None) == (name != "killed")


@pytest.mark.parametrize("message", [LOST, NCCL, text_of("gloo-timeout.exception").partition(": ")[2]])
def test_a_cascade_never_beats_a_root_on_any_rank(message: str) -> None:
    found = classed(raised(0, message, 1.0), raised(1, "'cu_seqlens'", 2.0, "KeyError"), raised(2, message, 3.0))
    assert (found.name, found.rank, found.domain) == ("python-exception", 1, "code")
    assert "KeyError: 'cu_seqlens'" in found.evidence


def test_of_two_roots_the_earlier_counts() -> None:
    memory = text_of("gpu-out-of-memory.exception").partition(": ")[2]
    found = classed(raised(0, "64 vs 32", 5.0), raised(1, memory, 4.0, "OutOfMemoryError"))
    assert (found.name, found.rank) == ("gpu-out-of-memory", 1)


@pytest.mark.parametrize(("message", "name"), [(NCCL, "nccl-timeout"), (LOST, "lost-peer")])
def test_a_cascade_alone_is_of_unknown_domain_and_allows_no_retry(message: str, name: str) -> None:
    found = classed(raised(0, message, 1.0), raised(1, message, 2.0))
    assert (found.name, found.role, found.domain, found.retry) == (name, "cascade", "unknown", "unknown")
    assert found.rank == 0


def test_a_rank_that_torch_aborts_over_a_time_out_is_part_of_the_cascade() -> None:
    dead = ending(0, "crashed", exit_code=-6)
    assert classed(dead, rank0=text_of("nccl-timeout.log")).name == "nccl-timeout"
    assert classed(dead, rank0="Fatal Python error: Aborted").name == "native-crash"
    assert classed(dead, rank0=text_of("gpu-memory-access.watchdog.log")).name == "gpu-memory-access"


def test_advice_on_cuda_errors_is_no_cause() -> None:
    advice = text_of("gpu-memory-access.exception").partition("\n")[2]
    assert list(patterns_of_log(advice)) == []
    assert classed(raised(0, f"CUDA error: no kernel image\n{advice}", 1.0)).name == "python-exception"


def test_tear_down_noise_cannot_replace_the_cause() -> None:
    noise = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2021-10-27T19:35:36 ***\nsrun: Job step aborted"
    found = classed(ending(0, "killed", exit_code=-9), job_log=f"{text_of('host-out-of-memory.slurm.log')}{noise}")
    assert found.name == "host-out-of-memory"
    assert classed(ending(0, "killed", exit_code=-9), job_log=noise).name == "killed"
    ending_interpreter = "ImportError: sys.meta_path is None, Python is likely shutting down"
    assert classed(ending(0, "killed", exit_code=-9), rank0=ending_interpreter).name == "killed"


def test_a_job_that_was_cancelled_after_an_exception_does_not_excuse_it() -> None:
    found = classed(raised(0, "64 vs 32", 5.0), ending(1, "killed", exit_code=-15), state="CANCELLED by 0")
    assert found.name == "python-exception"
    found = classed(raised(0, "64 vs 32", 5.0), ending(1, "killed", exit_code=-9), state="NODE_FAIL")
    assert (found.name, found.retry) == ("python-exception", "never")


def test_ranks_that_lost_a_failed_node_are_its_consequence() -> None:
    waiting = ending(0, "deadline", hang="all_reduce", exit_code=-9)
    found = classed(waiting, ending(1, "missing"), state="NODE_FAIL")
    assert (found.name, found.retry) == ("node-failure", "other nodes")
    assert classed(raised(0, LOST, 1.0), ending(1, "missing"), state="NODE_FAIL").name == "node-failure"


def test_a_hang_is_named_with_collective_ranks_and_step_although_the_job_timed_out() -> None:
    late = [late_rank(0, "all_reduce"), late_rank(1, "barrier")]
    found = classed(*late, state="TIMEOUT")
    assert (found.name, found.domain, found.retry) == ("hang", "code", "never")
    assert found.evidence.startswith("hang in all_reduce (rank 0) and barrier (rank 1) at step 1; rank 0 ")


def test_a_deadline_without_a_wait_and_silence_are_unknown() -> None:
    assert classed(late_rank(0, None)).name == "deadline"
    found = classed(ending(0, "missing"), ending(1, "missing"))
    assert (found.name, found.evidence, found.retry) == ("unknown", "ranks 0, 1 left no message", "unknown")


def test_a_text_alone_never_allows_a_retry() -> None:
    text = text_of("gpu-hardware.xid79.log")
    crashed = ending(0, "crashed", exit_code=-11)
    assert (classed(crashed, rank0=text).name, classed(crashed, rank0=text).retry) == ("gpu-hardware", "unknown")
    assert classed(ending(0, "killed", exit_code=-9), rank0=text).retry == "other nodes"
    ecc = text_of("gpu-hardware.exception").partition(": ")[2]
    assert classed(raised(0, ecc, 1.0)).retry == "other nodes"


def test_how_the_job_ended_is_quoted_in_a_sentence_where_it_is_known() -> None:
    killed = (ending(0, "killed", exit_code=-9),)
    words = "job 12 hit its time limit of 10 min"
    found = classify(FailureEvidence(endings=killed, scheduler_state="TIMEOUT", scheduler_words=words))
    assert (found.name, found.evidence) == ("time-limit", words)


@pytest.mark.parametrize("state", [None, "NODE_FAIL", "PREEMPTED"])
def test_numbers_that_went_wrong_are_never_retried(state: str | None) -> None:
    nan = text_of("non-finite.exception").partition(": ")[2]
    assert classed(raised(0, nan, 5.0), ending(1, "killed", exit_code=-9), state=state).retry == "never"
    ecc = text_of("gpu-hardware.exception").partition(": ")[2]
    assert classed(raised(0, ecc, 1.0), raised(1, nan, 2.0), state=state).name == "non-finite"
    assert classed(ending(0, "killed", exit_code=-9), rank0=text_of("non-finite.log"), state=state).retry == "never"


def test_a_native_crash_comes_before_its_lost_peers() -> None:
    found = classed(raised(0, LOST, 1.0), ending(1, "crashed", exit_code=-11))
    assert (found.name, found.rank, found.evidence) == ("native-crash", 1, "signal 11")
    assert classed(ending(0, "crashed", exit_code=3)).evidence == "exit code 3"


def test_the_class_of_a_cell_is_that_of_its_ranks() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.failure_class is None
    broken = evidence_for(config_of("sft", tp=2))
    assert broken.result is not None
    broken.result.status = "failed"
    for rank, message in ((0, "Connection reset by peer"), (1, "mat1 and mat2 shapes cannot be multiplied")):
        cut_off(broken.records[rank], "raised")
        broken.records[rank].failure = Failure(type="RuntimeError", message=message, traceback="", time=rank)
    assert broken.failure_class is not None and broken.cause is not None
    assert (broken.failure_class.name, broken.failure_class.rank) == ("python-exception", 1)
    assert broken.cause.ending.rank == 1


def test_a_fault_of_the_code_in_the_log_of_a_killed_rank_comes_before_the_job_state() -> None:
    text = text_of("gpu-memory-access.xid31.log")
    found = classed(ending(0, "killed", exit_code=-9), rank0=text, state="NODE_FAIL")
    assert (found.name, found.retry) == ("gpu-memory-access", "never")


def test_ranks_that_the_parent_ended_are_not_killed_from_outside() -> None:
    assert classed(ending(0, "killed", exit_code=-15)).name == "unknown"
    assert classed(raised(0, LOST, 1.0), ending(1, "killed", exit_code=-15)).name == "lost-peer"


def test_the_log_of_a_rank_that_raised_only_a_cascade_may_name_the_root() -> None:
    found = classed(raised(0, LOST, 1.0), rank0=text_of("gpu-hardware.xid79.log"))
    assert (found.name, found.retry) == ("gpu-hardware", "unknown")


def test_the_output_of_the_job_counts_for_ranks_without_an_exception() -> None:
    lost_node = text_of("node-failure.log")
    hung, aborted = ending(0, "deadline", hang="all_reduce"), ending(0, "crashed", exit_code=-6)
    assert classed(hung, job_log=lost_node).name == "node-failure"
    assert classed(aborted, job_log=lost_node, rank0=text_of("nccl-timeout.log")).name == "node-failure"
    # Another cell of the same job may have lost the node.
    assert classed(raised(0, LOST, 1.0), job_log=lost_node).name == "lost-peer"


def test_the_clean_up_of_the_driver_is_no_fault_of_the_gpu() -> None:
    [clean_up] = [line for line in text_of("gpu-hardware.nvlink.log").splitlines() if "): 45," in line]
    assert list(patterns_of_log(clean_up)) == []
