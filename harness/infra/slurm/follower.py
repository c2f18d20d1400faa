"""Follows the jobs of a run until they end, by the journals and heartbeats of their agents and by Slurm.

The agents' files decide. Slurm is asked, in one call for all jobs and at growing intervals, only whether jobs whose
agents have not finished may still be running. Only its answers end a job, never time alone: an answer may take a
minute, and this process may be stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.run.events import Event, Finished
from harness.core.run.journal import Journal
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation
from harness.infra.slurm.client import SlurmClient
from harness.infra.slurm.job_states import JobState, Pending

Listener = Callable[[Event], None]
LOOK_S = 0.2  # between reads of the journals
LOOK_PER_JOB_S = 0.005  # added per job: every read of a journal loads the shared file system
DOUBT_ASK_S = 2.0  # between questions to Slurm while a job seems to have ended
FIRST_ASK_S = 8.0  # otherwise; grows to LONGEST_ASK_S while no cell begins or ends
LONGEST_ASK_S = 30.0
SURE_AFTER_S = 4.0  # between two answers that show an end: a requeued job shows its old end for a moment
SILENT_S = 10.0  # without a heartbeat: then the controller must confirm accounting, which may have missed the end
LOST_AFTER_S = 45.0  # between two answers that do not know the job, and since a sign of life of its agent
MAX_GAP_S = 10.0  # between two turns; a longer gap is a delay of this process and counts as this much time


@dataclass
class Following:
    """An allocation that has been submitted and has not ended. Times are of the follower's `Turns`."""

    allocation: Allocation
    job: str  # Slurm's id, "12" or "12_3"; of the job that has claimed the allocation, once one has
    journal: Journal  # of its newest start
    last_word: float  # last heartbeat or event of its leading agent
    claims: int = 0  # starts that have claimed the allocation
    state: JobState = field(default_factory=JobState)  # as Slurm last listed it
    asked: float | None = None  # when the query was sent that Slurm last answered
    first_ended: float | None = None  # arrival of the first of consecutive answers that show it as ended
    first_unknown: float | None = None  # arrival of the first of consecutive answers that do not know it
    last_event: float = 0.0
    last_beat: int = 0  # modification time of the leading agent's heartbeat, ns

    def answered(self, state: JobState, asked: float, now: float) -> None:
        """Take Slurm's answer to a query sent at `asked`."""
        listed = state.state != "UNKNOWN"
        # A job that has not begun may be in the queue of a controller that is away: it has no agent to be heard.
        may_wait = not state.answered and (self.last_beat == 0 or self.state.waits)
        self.asked = asked
        self.first_ended = (self.first_ended or now) if state.ended else None
        self.first_unknown = None if listed or may_wait else (self.first_unknown or now)
        self.state = state if listed else self.state

    def restarted(self, journal: Path) -> None:
        """Slurm has started the job again: what was seen of the earlier start no longer counts."""
        self.journal, self.state, self.last_beat = Journal(journal), JobState(), 0
        self.first_ended = self.first_unknown = None

    @property
    def alive(self) -> bool:
        """Whether the newest answer, or a sign of life since the job became unknown, shows that it has not ended."""
        known = self.first_unknown is None or self.last_word > self.first_unknown
        return self.asked is not None and known and self.first_ended is None and self.state.state != "COMPLETING"

    @property
    def over(self) -> bool:
        """Whether the newest answer confirms that the job has ended, or that it is lost."""
        if self.asked is None:
            return False
        ended = self.first_ended is not None and self.asked > self.first_ended + SURE_AFTER_S
        quiet_since = None if self.first_unknown is None else max(self.first_unknown, self.last_word)
        return ended or (quiet_since is not None and self.asked > quiet_since + LOST_AFTER_S)


@dataclass(frozen=True)
class Ended:
    """How an allocation ended; `finished`: its leading agent wrote the event Finished."""

    allocation: Allocation
    job: str
    state: JobState
    finished: bool


class Follower:
    """Waits for jobs and yields how each ended; jobs may be added meanwhile.

    `show_queue`: called with why jobs wait in the queue, "" when none does. `clock` and `sleep` in seconds.
    """

    def __init__(
        self,
        run: RunDir,
        listener: Listener,
        client: SlurmClient,
        show_queue: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.run, self.listener, self.show_queue, self.sleep = run, listener, show_queue, sleep
        self.waiting: list[Following] = []
        self.turns = Turns(clock)
        self.queries = _Queries(client)

    def add(self, allocations: Iterable[Allocation], ids: Mapping[str, str]) -> None:
        """Follow these too; `ids`: allocation -> Slurm's job id."""
        for one in allocations:
            journal = Journal(self.run.agent_journal(one.name, 0))
            self.waiting.append(Following(one, ids[one.name], journal, last_word=self.turns.now))

    def ended(self, *, wait: bool = True) -> Iterator[Ended]:
        """Pass on the agents' events; yield every allocation as soon as it has ended, until none is left.

        `wait` False: until those that are left are known to have jobs that have not ended.
        """
        while self.waiting and (wait or not all(one.alive for one in self.waiting)):
            self.turns.next()
            for one in list(self.waiting):
                finished = self._pass_on(one)
                if finished or one.over:
                    self.waiting.remove(one)
                    yield Ended(one.allocation, one.job, one.state, finished)
            if self.queries.poll(self.waiting, self.turns.now):
                self.show_queue(queue_text(self.queries.pending))
            self.sleep(max(LOOK_S, LOOK_PER_JOB_S * len(self.waiting)))

    def _pass_on(self, one: Following) -> bool:
        """Pass new events to the listener; returns whether the leading agent of the newest start has finished."""
        finished = self._new_events(one)
        while (claim := self.run.read_claim(one.allocation.name, one.claims + 1)) is not None:
            one.claims += 1
            one.job = claim.job
            journal = self.run.agent_journal(claim.order, 0)
            if journal != one.journal.path:
                one.restarted(journal)
                finished = False
            one.last_word = self.turns.now
            finished |= self._new_events(one)
        beat = _beat(one.journal.path.with_suffix(".heartbeat"))
        if beat and beat != one.last_beat:
            one.last_beat, one.last_word = beat, self.turns.now
        return finished

    def _new_events(self, one: Following) -> bool:
        finished = False
        for event in one.journal.new_events():
            one.last_word = one.last_event = self.turns.now
            finished |= isinstance(event, Finished)
            self.listener(event)
        return finished


class Turns:
    """The time of the follower's turns, seconds: that in which it could see heartbeats and answers.

    A stopped process, a hung file system and a slow sbatch make gaps that say nothing about the jobs.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.now, self._last = clock, 0.0, clock()

    def next(self) -> None:
        now = self.clock()
        self.now += min(now - self._last, MAX_GAP_S)
        self._last = now


class _Queries:
    """Queries Slurm for all jobs at once, in a thread: a slow answer does not delay the reading of journals."""

    def __init__(self, client: SlurmClient) -> None:
        self.client = client
        self.thread: Executor = ThreadPoolExecutor(max_workers=1)
        self.requested: Future[tuple[dict[str, JobState], dict[str, Pending]]] | None = None
        self.pending: dict[str, Pending] = {}  # of the last answer
        self.pause_s = FIRST_ASK_S
        self.asked = 0.0
        self.last_poll = -FIRST_ASK_S  # the first query is made at once: a job may have ended before the launcher began

    def poll(self, waiting: Sequence[Following], now: float) -> bool:
        """Take an answer that has arrived, or query again when it is time; returns whether there was an answer."""
        silent = [one for one in waiting if now > one.last_word + SILENT_S]
        if self.requested is None:
            doubtful = any(one.first_ended is not None for one in waiting)
            doubtful |= any(one.last_beat or one.first_unknown is not None for one in silent)
            if waiting and now >= self.last_poll + (DOUBT_ASK_S if doubtful else self.pause_s):
                self.asked = now
                jobs, unheard = [one.job for one in waiting], frozenset(one.job for one in silent)
                self.requested = self.thread.submit(self._ask, jobs, unheard)
            return False
        if not self.requested.done():
            return False
        (states, self.pending), self.requested = self.requested.result(), None
        for one in waiting:
            if one.job in states:  # the others were added after the query
                one.answered(states[one.job], self.asked, now)
        moved = any(one.last_event >= self.last_poll for one in waiting)
        self.pause_s = FIRST_ASK_S if moved else min(self.pause_s * 1.5, LONGEST_ASK_S)
        self.last_poll = now
        return True

    def _ask(self, jobs: Sequence[str], silent: frozenset[str]) -> tuple[dict[str, JobState], dict[str, Pending]]:
        states = self.client.states(jobs, silent)
        return states, self.client.pending([job for job in jobs if states[job].state == "PENDING"])


def queue_text(pending: Mapping[str, Pending]) -> str:
    """E.g. "3 jobs wait in the queue: Resources (2), Priority (1); first start expected at 2027-01-31T12:00:00"."""
    if not pending:
        return ""
    reasons = Counter(one.reason for one in pending.values())
    listed = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
    start = min((one.start for one in pending.values() if one.start), default="")
    jobs = "1 job waits" if len(pending) == 1 else f"{len(pending)} jobs wait"
    return f"{jobs} in the queue: {listed}" + (f"; first start expected at {start}" if start else "")


def _beat(heartbeat: Path) -> int:
    try:
        return heartbeat.stat().st_mtime_ns
    except OSError:  # none yet, or being replaced
        return 0
