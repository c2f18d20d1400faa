from __future__ import annotations

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.run.records import Progress
from harness.judge.evidence.endings import Ending
from harness.judge.failures import patterns as table
from harness.judge.failures.classification import Stall, stall_of

STEP = "megatron/core/pipeline_parallel/schedules.py:400 in forward_step"
GRADS = "megatron/core/distributed/finalize_model_grads.py:300 in finalize_model_grads"
OURS = "harness/probe/legs/training.py:40 in run"


def late(rank: int, hang: str | None, *frames: str, stalled: bool = True, **more: object) -> Ending:
    """A rank at the deadline; its frames innermost last, without those of torch."""
    facts: dict[str, object] = {"stack": (OURS, *frames), "exit_code": -9, **more}
    return Ending(
        rank=rank,
        place=Coordinates(tp=rank, cp=0, dp=0, pp=0),
        ended="deadline",
        progress=Progress(leg="training", step=1, micro_batch=rank, phase="forward"),
        hang=hang,
        stalled=stalled,
        **facts,  # type: ignore[arg-type]
    )


def ended(rank: int, how: str) -> Ending:
    return Ending(rank=rank, place=Coordinates(tp=rank, cp=0, dp=0, pp=0), ended=how, progress=Progress())


def stall(*endings: Ending) -> Stall:
    found = stall_of(endings)
    assert found is not None
    return found


def test_a_hang_names_who_waited_where_and_who_never_arrived() -> None:
    found = stall(late(0, "all_reduce", GRADS), late(1, None, STEP))
    assert (found.pattern, found.rank) == (table.HANG, 1)
    assert found.text.startswith(
        "hang in all_reduce (rank 0) at step 1; rank 1 (stage 0, tp 1, cp 0, dp 0) never arrived"
    )
    assert STEP in found.text


def test_ranks_that_all_wait_in_different_calls_wait_for_each_other() -> None:
    assert stall(late(0, "all_reduce", GRADS), late(1, "barrier", STEP)).pattern is table.HANG
    assert stall(late(0, "recv", STEP), late(1, "recv", GRADS)).pattern is table.HANG


def flown(size: str, *, number: int = 5, ranks: str = "[0, 1]") -> tuple[str, ...]:
    """As runtime/recording/flight_recorder.py writes what NCCL's recorder had not seen complete."""
    return (f"all_reduce number {number} of group TP {ranks}, inputs {size}",)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(flown("4x8"), flown("4x16"), id="sizes"),
        pytest.param(flown("4x8"), flown("4x8", number=6), id="numbers"),
        pytest.param(flown("4x8"), flown("4x8", ranks="[1]"), id="groups"),
    ],
)
def test_calls_that_nccl_saw_differ_within_a_group_are_a_hang(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    """Frames prove nothing on a GPU, where the host continues."""
    found = stall(late(0, "all_reduce", GRADS, flight=first), late(1, "all_reduce", STEP, flight=second))
    assert found.pattern is table.HANG


def test_one_call_that_nccl_saw_on_all_ranks_of_each_group_proves_nothing() -> None:
    one, other = flown("4x8"), flown("4x8", ranks="[2, 3]")
    ranks = [late(rank, "all_reduce", GRADS if rank else STEP, flight=one if rank < 2 else other) for rank in range(4)]
    assert stall(*ranks).pattern is table.STALLED


def test_ranks_that_all_wait_in_the_very_same_call_prove_nothing_against_the_code() -> None:
    found = stall(late(0, "all_reduce", GRADS), late(1, "all_reduce", GRADS))
    assert found.pattern is table.STALLED
    assert f"every rank waited in the same call, all_reduce (ranks 0, 1) at step 1: {GRADS}" in found.text


def test_a_rank_without_a_stack_is_frozen() -> None:
    found = stall(late(0, "all_reduce", GRADS), late(1, None, stack=None))
    assert (found.pattern, found.rank) == (table.FROZEN, 1)
    assert "waiting for it: all_reduce (rank 0)" in found.text


@pytest.mark.parametrize(
    "endings",
    [
        pytest.param((late(0, "all_reduce", GRADS), late(1, None, STEP, stalled=False)), id="one still moved"),
        pytest.param((late(0, "all_reduce", GRADS), late(1, None)), id="the absent one is in the harness"),
        pytest.param((late(0, "all_reduce"), late(1, "barrier")), id="only the harness waits"),
        pytest.param((late(0, None, STEP), late(1, None, STEP)), id="nobody waits"),
        pytest.param(
            (late(0, "all_reduce", GRADS), late(1, None, stack=None, exit_code=-11)), id="the dump crashed it"
        ),
        pytest.param((late(0, None, stack=None), late(1, None, stack=None)), id="no dump at all"),
        pytest.param((late(0, "all_reduce", GRADS), ended(1, "missing")), id="a rank was lost"),
    ],
)
def test_without_both_sides_it_is_only_a_deadline(endings: tuple[Ending, ...]) -> None:
    assert stall(*endings).pattern in (table.DEADLINE,)


def test_a_rank_that_had_ended_never_arrives() -> None:
    assert stall(late(0, "all_reduce", GRADS), ended(1, "completed")).pattern is table.HANG


def test_ranks_that_ended_before_the_deadline_leave_no_stall() -> None:
    assert stall_of([ended(0, "completed"), ended(1, "raised")]) is None
