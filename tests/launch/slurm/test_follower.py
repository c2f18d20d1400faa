"""Following jobs, with agents' files, a scripted Slurm and a clock that tests move."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from harness.core.run.events import CellFinished, CellStarted, Event, Failed, Finished, Loaded, note
from harness.core.run.job_start import Claim
from harness.core.run.run_dir import RunDir, write_new
from harness.core.run.run_plan import Allocation
from harness.launch.slurm.client import JobState, Pending, SlurmClient
from harness.launch.slurm.follow import LONGEST_ASK_S, LOST_AFTER_S, SURE_AFTER_S, Ended, Follower, queue_text
from tests.launch.scheduler import Clock

ONE = Allocation(name="1n2r-0", cells=("x",), array="1n2r")
AWAY = JobState(answered=False)
GONE = JobState()
NODE_FAIL, PENDING, RUNNING, COMPLETING, CANCELLED = (
    JobState(state=name, source="squeue") for name in ("NODE_FAIL", "PENDING", "RUNNING", "COMPLETING", "CANCELLED")
)


EVENTS: dict[str, Event] = {
    "loaded": Loaded(import_s=1.0),
    "cell_started": CellStarted(cell="x", attempt=1, ranks=2),
    "cell_finished": CellFinished(cell="x", attempt=1, status="completed"),
    "failed": Failed(reason="why", traceback=""),
    "finished": Finished(),
}


class Scripted(SlurmClient):
    """Answers about every job with the next state of the script, then repeats the last one."""

    def __init__(self, *script: JobState) -> None:
        super().__init__()
        self.script = list(script)
        self.requested: list[list[str]] = []
        self.silent: list[set[str]] = []

    def states(self, jobs: Sequence[str], silent: Collection[str] = ()) -> dict[str, JobState]:
        self.requested.append(list(jobs))
        self.silent.append(set(silent))
        state = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return dict.fromkeys(jobs, state)

    def pending(self, jobs: Sequence[str]) -> dict[str, Pending]:
        return {job: Pending(reason="Resources") for job in jobs}


class Slow(Executor):
    """Runs a call when the clock has moved by `takes_s` since it was made."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.takes_s = clock, 0.0
        self.due: tuple[float, Future[Any], Callable[[], Any]] | None = None
        self.made: list[float] = []  # when each call was made

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.made.append(self.clock())
        self.due = self.clock() + self.takes_s, future, lambda: call(*args, **kwargs)
        return future

    def run_what_is_due(self) -> None:
        if self.due is not None and self.clock() >= self.due[0]:
            _, future, call = self.due
            self.due = None
            future.set_result(call())


class Bench:
    """A follower whose sleep moves the clock, delivers Slurm's answer and lets the test act."""

    def __init__(self, folder: Path, *script: JobState) -> None:
        self.run, self.clock, self.client = RunDir(folder), Clock(), Scripted(*script)
        self.slurm = Slow(self.clock)
        self.heard: list[str] = []
        self.queue: list[str] = []
        self.act: Callable[[float], None] = lambda seconds: None  # seconds since the beginning
        self.begin = self.clock()
        self.follower = Follower(
            self.run,
            lambda event: self.heard.append(event.kind.value),
            self.client,
            self.queue.append,
            self.clock,
            self.sleep,
        )
        self.follower.queries.thread = self.slurm

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self.slurm.run_what_is_due()
        assert self.seconds < 3600, "a job is followed for too long"
        self.act(self.seconds)

    @property
    def seconds(self) -> float:
        return self.clock() - self.begin

    def say(self, event: str, order: str = "1n2r-0") -> None:
        note(self.run.agent_journal(order, 0), EVENTS[event])

    def beat(self) -> None:
        """A new heartbeat of the leading agent."""
        heartbeat = self.run.agent_journal("1n2r-0", 0).with_suffix(".heartbeat")
        heartbeat.parent.mkdir(parents=True, exist_ok=True)
        heartbeat.write_text("{}")
        os.utime(heartbeat, (self.clock(), self.clock()))

    def claim(self, number: int, job: str, order: str = "1n2r-0", restart: int = 0) -> None:
        assert write_new(self.run.claim("1n2r-0", number), Claim(job=job, restart=restart, order=order))

    def finish_after(self, seconds: float) -> None:
        self.act = lambda now: self.say("finished") if now > seconds else None

    def end(self) -> Ended:
        self.follower.add([ONE], {"1n2r-0": "7"})
        (ended,) = self.follower.ended()
        return ended


def test_a_job_that_ended_is_reported_while_others_run_and_more_may_be_added(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY)
    short, long, again = (Allocation(name=name, cells=("x",)) for name in ("short", "long", "again"))
    bench.say("finished", "short")
    bench.follower.add([long, short], {"long": "1", "short": "2"})
    ends = []
    for ended in bench.follower.ended():
        ends.append((ended.allocation.name, ended.finished))
        if ended.allocation is short:
            bench.say("finished", "again")
            bench.follower.add([again], {"again": "3"})
        if ended.allocation is again:
            bench.say("finished", "long")
    assert ends == [("short", True), ("again", True), ("long", True)]
    assert bench.heard == ["finished"] * 3


def test_a_job_that_slurm_shows_as_ended_is_over_only_if_it_stays_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NODE_FAIL, PENDING, RUNNING, NODE_FAIL)
    ended = bench.end()
    assert (ended.finished, ended.state.state) == (False, "NODE_FAIL")
    assert len(bench.client.requested) >= 4
    assert bench.seconds > SURE_AFTER_S


def test_a_pending_job_is_never_lost_however_long_it_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, PENDING)
    bench.finish_after(20 * LOST_AFTER_S)
    assert bench.end().finished
    assert set(bench.queue) == {"1 job waits in the queue: Resources (1)"}


@pytest.mark.parametrize("takes_s", [20.0, 60.0])
def test_a_slow_answer_ends_no_job(tmp_path: Path, takes_s: float) -> None:
    bench = Bench(tmp_path, PENDING)
    bench.slurm.takes_s = takes_s
    bench.finish_after(6 * LOST_AFTER_S)
    assert bench.end().finished


def test_an_old_end_of_a_requeued_job_counts_only_when_a_later_question_shows_it_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NODE_FAIL, PENDING)
    bench.slurm.takes_s = 2 * SURE_AFTER_S
    bench.finish_after(LOST_AFTER_S)
    assert bench.end().finished


@pytest.mark.parametrize(
    "state", ["STOPPED", "SPECIAL_EXIT", "POWER_UP_NODE", "REQUEUE_HOLD", "SIGNALING", "STAGE_OUT", "RESIZING"]
)
def test_a_job_that_slurm_lists_in_any_state_but_an_end_is_not_lost(tmp_path: Path, state: str) -> None:
    bench = Bench(tmp_path, JobState(state=state, source="squeue"))
    bench.finish_after(2 * LOST_AFTER_S)
    assert bench.end().finished


@pytest.mark.parametrize("stopped_s", [30.0, 10 * LOST_AFTER_S])
def test_a_launcher_that_was_stopped_counts_a_queued_job_as_queued(tmp_path: Path, stopped_s: float) -> None:
    bench = Bench(tmp_path, PENDING)
    stops = [3 * LONGEST_ASK_S]  # when the questions have become rare

    def stop(seconds: float) -> None:
        if stops and seconds > stops[0]:
            stops.pop(0)
            bench.clock.sleep(stopped_s)
        if seconds > 6 * LONGEST_ASK_S + stopped_s:
            bench.say("finished")

    bench.act = stop
    assert bench.end().finished


def test_the_time_in_which_launcher_and_agents_were_stopped_is_not_silence(tmp_path: Path) -> None:
    """As when the shared file system hangs: afterwards the agents have as long as ever for their next heartbeat."""
    bench = Bench(tmp_path, GONE)
    bench.beat()
    hung: list[float] = []

    def hang(seconds: float) -> None:
        if not hung and seconds > 20:
            bench.clock.sleep(2 * LOST_AFTER_S)
            hung.append(bench.seconds)
        elif hung and seconds > hung[0] + 10:
            bench.say("finished")

    bench.act = hang
    assert bench.end().finished


def test_a_job_that_slurm_does_not_know_and_whose_agent_is_silent_is_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path, GONE)
    ended = bench.end()
    assert (ended.finished, ended.state.source) == (False, "")
    assert LOST_AFTER_S < bench.seconds < 2 * LOST_AFTER_S


def test_a_heartbeat_keeps_a_job_that_slurm_has_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path, GONE)

    def beat(seconds: float) -> None:
        bench.beat()
        if seconds > 3 * LOST_AFTER_S:
            bench.say("finished")

    bench.act = beat
    assert bench.end().finished


def test_a_job_that_has_not_begun_waits_for_a_controller_that_is_away(tmp_path: Path) -> None:
    """It may be in the queue: only a job whose agent has been heard can be lost while Slurm does not answer."""
    bench = Bench(tmp_path, AWAY)
    bench.finish_after(10 * LOST_AFTER_S)
    assert bench.end().finished


def test_a_requeued_job_waits_for_a_controller_that_is_away_although_its_first_start_was_heard(tmp_path: Path) -> None:
    bench = Bench(tmp_path, PENDING, AWAY)
    bench.beat()
    bench.finish_after(3 * LOST_AFTER_S)
    assert bench.end().finished


def test_a_job_whose_agent_was_heard_is_lost_while_the_controller_is_away(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY)
    bench.beat()
    assert not bench.end().finished
    assert bench.seconds < 2 * LOST_AFTER_S


def test_a_second_start_of_a_job_is_followed_and_the_first_one_is_ignored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RUNNING)
    bench.claim(1, "7")
    bench.say("cell_started")

    def go_on(seconds: float) -> None:
        if seconds > 5 and not bench.run.claim("1n2r-0", 2).exists():
            bench.say("cell_finished")  # before the second start
            bench.claim(2, "7", "1n2r-0.restart1", restart=1)
        elif 10 < seconds < 11:
            bench.say("finished")  # an agent of the first start that is still alive
        elif seconds > 20:
            bench.say("finished", "1n2r-0.restart1")

    bench.act = go_on
    assert bench.end().finished
    assert bench.seconds > 20
    assert bench.heard == ["cell_started", "cell_finished", "finished"]


def test_a_launcher_that_comes_later_follows_the_newest_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RUNNING)
    bench.claim(1, "7")
    bench.say("finished")
    bench.claim(2, "7", "1n2r-0.restart1", restart=1)
    bench.act = lambda seconds: bench.say("finished", "1n2r-0.restart1") if seconds > 10 else None
    assert bench.end().finished
    assert bench.seconds > 10


def test_a_start_that_has_not_been_heard_waits_for_a_controller_that_is_away(tmp_path: Path) -> None:
    bench = Bench(tmp_path, AWAY)
    bench.claim(1, "7")
    bench.beat()
    bench.claim(2, "7", "1n2r-0.restart1", restart=1)
    bench.act = lambda seconds: bench.say("finished", "1n2r-0.restart1") if seconds > 3 * LOST_AFTER_S else None
    assert bench.end().finished


def test_what_an_agent_notes_after_its_end_does_not_revive_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RUNNING)
    bench.say("finished")
    bench.say("failed")
    assert bench.end().finished
    assert bench.heard == ["finished", "failed"]


@pytest.mark.parametrize("state", [NODE_FAIL, GONE, RUNNING], ids=lambda state: state.state)
def test_a_launcher_that_comes_after_the_only_start_has_finished_sees_it(tmp_path: Path, state: JobState) -> None:
    bench = Bench(tmp_path, state)
    bench.claim(1, "7")
    bench.say("finished")
    assert bench.end().finished
    assert bench.client.requested == [], "the journal decides"


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ([PENDING], []),
        ([RUNNING], []),
        ([NODE_FAIL, PENDING], []),
        ([AWAY], []),
        ([COMPLETING, CANCELLED], ["CANCELLED"]),
        ([GONE], ["UNKNOWN"]),
    ],
    ids=lambda value: "-".join(getattr(one, "state", one) for one in value),
)
def test_a_caller_that_does_not_wait_gets_the_jobs_that_have_ended_by_now(
    tmp_path: Path, script: list[JobState], ended: list[str]
) -> None:
    bench = Bench(tmp_path, *script)
    bench.follower.add([ONE], {"1n2r-0": "7"})
    assert [one.state.state for one in bench.follower.ended(wait=False)] == ended


def test_slurm_is_queried_for_the_job_that_claimed_the_cells(tmp_path: Path) -> None:
    """Two jobs of one submission: the one whose number was recorded did not run."""
    bench = Bench(tmp_path, NODE_FAIL)
    bench.claim(1, "9_0")
    assert bench.end().job == "9_0"
    assert bench.client.requested[-1] == ["9_0"]


def test_the_text_about_the_queue_counts_the_reasons() -> None:
    waits = {
        "1": Pending(reason="Priority"),
        "2": Pending(reason="Resources", start="2027-01-31T12:00:00"),
        "3": Pending(reason="Resources", start="2027-01-31T11:00:00"),
    }
    assert queue_text(waits) == (
        "3 jobs wait in the queue: Resources (2), Priority (1); first start expected at 2027-01-31T11:00:00"
    )
    assert queue_text({}) == ""
