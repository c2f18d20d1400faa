"""When Slurm is queried about jobs, and what for, on a clock whose every turn takes a quarter of a second."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from harness.launch.slurm.client import JobState
from harness.launch.slurm.follow import Follower
from tests.launch.scheduler import Clock
from tests.launch.slurm.test_follower import NODE_FAIL, ONE, PENDING, RUNNING, Bench, Scripted


class Quarters(Bench):
    """Turns of a length that floats hold exactly, so that times can be compared."""

    def sleep(self, seconds: float) -> None:
        super().sleep(0.25)

    def asked(self) -> list[float]:
        """Follow until the job has ended; when Slurm was queried, seconds since the beginning."""
        assert self.end().job == "7"
        assert self.client.requested == [["7"]] * len(self.client.requested)
        return [made - self.begin for made in self.slurm.made]


def test_the_questions_about_a_job_that_does_not_move_become_rare(tmp_path: Path) -> None:
    bench = Quarters(tmp_path, PENDING)
    bench.finish_after(140)
    assert bench.asked() == [0, 8.25, 20.5, 38.75, 66, 96.25, 126.5]
    assert bench.queue == ["1 job waits in the queue: Resources (1)"] * 7


@pytest.mark.parametrize(("moves", "then"), [(8.25, 28.75), (8.5, 24.75)])
def test_a_cell_that_begins_or_ends_makes_the_questions_frequent_again(
    tmp_path: Path, moves: float, then: float
) -> None:
    """An event counts from the answer on with which it arrives."""
    bench = Quarters(tmp_path, RUNNING)

    def act(seconds: float) -> None:
        if seconds == moves:
            bench.say("cell_started")
        bench.beat()
        if seconds == 30:
            bench.say("finished")

    bench.act = act
    assert bench.asked() == [0, 8.25, 16.5, then]


def test_a_job_that_seems_to_have_ended_is_asked_about_every_two_seconds(tmp_path: Path) -> None:
    assert Quarters(tmp_path, NODE_FAIL).asked() == [0, 2.25, 4.5]


def test_a_job_whose_heartbeats_stop_is_asked_about_every_two_seconds(tmp_path: Path) -> None:
    bench = Quarters(tmp_path, RUNNING)
    bench.beat()
    bench.finish_after(16)
    assert bench.asked() == [0, 8.25, 10.5, 12.75, 15]
    assert bench.client.silent == [set(), set(), {"7"}, {"7"}, {"7"}]


def test_a_job_is_silent_when_its_last_word_is_more_than_ten_seconds_old(tmp_path: Path) -> None:
    bench = Quarters(tmp_path, RUNNING)
    bench.slurm.takes_s = 2.0
    bench.finish_after(25)
    assert bench.asked() == [0, 10, 24]
    assert bench.client.silent == [set(), set()]  # the third answer was not awaited


def test_the_queue_is_shown_once_for_each_answer(tmp_path: Path) -> None:
    bench = Quarters(tmp_path, PENDING)
    bench.slurm.takes_s = 2.0
    bench.finish_after(20)
    assert bench.asked() == [0, 10]
    assert bench.queue == ["1 job waits in the queue: Resources (1)"] * 2


class InThread(Scripted):
    """Notes the thread in which it is queried."""

    def __init__(self, *script: JobState) -> None:
        super().__init__(*script)
        self.threads: set[int] = set()

    def states(self, jobs: Sequence[str], silent: Collection[str] = ()) -> dict[str, JobState]:
        self.threads.add(threading.get_ident())
        return super().states(jobs, silent)


def test_all_questions_are_put_in_one_other_thread(tmp_path: Path) -> None:
    bench, client, clock = Bench(tmp_path), InThread(NODE_FAIL), Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if follower.queries.requested is not None:
            follower.queries.requested.result()

    follower = Follower(bench.run, lambda event: None, client, clock=clock, sleep=sleep)
    follower.add([ONE], {"1n2r-0": "7"})
    assert [one.state for one in follower.ended()] == [NODE_FAIL]
    assert len(client.threads) == 1 and threading.get_ident() not in client.threads
