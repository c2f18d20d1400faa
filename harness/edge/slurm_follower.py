"""Follows the jobs of a run until they end: their agents' journals and heartbeats, and what Slurm says of them.

Truth is what the agents write. Slurm is asked, in one call for all jobs and ever more seldom, only whether a job that
has not said that it finished may still do so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from harness.edge.run_dir import Journal, RunDir
from harness.edge.slurm_state import JobState, SlurmClient
from harness.words.run_plan import Allocation

Listener = Callable[[dict[str, Any]], None]
LOOK_S = 0.2  # between looks at the journals
LOOK_PER_JOB_S = 0.005  # more of it for many jobs: a shared file system answers every look at every journal
DOUBT_ASK_S = 2.0  # between questions to Slurm while a job seems to have ended
FIRST_ASK_S = 8.0  # else, growing while no cell begins or ends
LONGEST_ASK_S = 30.0
SURE_AFTER_S = (
    4.0  # a job seen as ended twice, so far apart, has ended: one being requeued shows its old end for a moment
)
SILENT_S = 10.0  # without a heartbeat: accounting alone is not believed any more, it may have missed the end
LOST_AFTER_S = 45.0  # Slurm knows nothing of the job and its agent is silent


@dataclass
class Following:
    """An allocation that has been submitted and has not ended."""

    allocation: Allocation
    job: str  # Slurm's id, "12" or "12_3"
    journal: Journal
    state: JobState = field(default_factory=JobState)
    first_ended: float | None = None  # local time at which Slurm first said that it had ended
    last_known: float = field(default_factory=time.monotonic)  # when Slurm last said that it has not ended
    last_word: float = field(default_factory=time.monotonic)  # of its leading agent, a heartbeat or an event
    last_event: float = 0.0
    last_beat: int = 0  # modification time of the leading agent's heartbeat, ns


@dataclass(frozen=True)
class Ended:
    """How an allocation ended; `finished`: its leading agent said so itself."""

    allocation: Allocation
    job: str
    state: JobState
    finished: bool


class Follower:
    """Waits for jobs and says how each ended; jobs may be added while it does."""

    def __init__(self, run: RunDir, listener: Listener, client: SlurmClient) -> None:
        self.run, self.listener = run, listener
        self.waiting: list[Following] = []
        self.questions = _Questions(client)

    def add(self, allocations: Iterable[Allocation], ids: Mapping[str, str]) -> None:
        """Follow these too; `ids` holds Slurm's job id by allocation."""
        self.waiting += [
            Following(one, ids[one.name], Journal(self.run.agent_journal(one.name, 0))) for one in allocations
        ]

    def ended(self) -> Iterator[Ended]:
        """Pass on the agents' events; every allocation as soon as it has ended, until none is left."""
        while self.waiting:
            for one in list(self.waiting):
                finished = _pass_on(one, self.listener)
                if finished or _is_over(one):
                    self.waiting.remove(one)
                    yield Ended(one.allocation, one.job, one.state, finished)
            self.questions.go_on(self.waiting)
            time.sleep(max(LOOK_S, LOOK_PER_JOB_S * len(self.waiting)))


class _Questions:
    """Asks Slurm about all jobs at once, in a thread: an answer that takes long holds up no journal."""

    def __init__(self, client: SlurmClient) -> None:
        self.client = client
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.asked: Future[dict[str, JobState]] | None = None
        self.pause_s = FIRST_ASK_S
        self.last_asked = (
            time.monotonic() - FIRST_ASK_S
        )  # the first question comes at once: a job may have ended before we came

    def go_on(self, waiting: Sequence[Following]) -> None:
        """Take an answer that has come, or ask again when it is time."""
        now = time.monotonic()
        silent = frozenset(one.job for one in waiting if now > one.last_word + SILENT_S)
        if self.asked is None:
            doubtful = any(one.first_ended is not None or (one.job in silent and one.last_beat) for one in waiting)
            if waiting and now >= self.last_asked + (DOUBT_ASK_S if doubtful else self.pause_s):
                self.asked = self.thread.submit(self.client.states, [one.job for one in waiting], silent)
        elif self.asked.done():
            states, self.asked = self.asked.result(), None
            for one in waiting:
                if one.job in states:  # others are followed only since Slurm was asked
                    _take(one, states[one.job])
            moved = any(one.last_event >= self.last_asked for one in waiting)
            self.pause_s = FIRST_ASK_S if moved else min(self.pause_s * 1.5, LONGEST_ASK_S)
            self.last_asked = now


def _pass_on(one: Following, listener: Listener) -> bool:
    """New events to the listener; whether the leading agent says that it has finished."""
    finished = False
    for event in one.journal.new_events():
        one.last_word = one.last_event = time.monotonic()
        finished |= event["event"] == "finished"
        listener(event)
    heartbeat = one.journal.path.with_suffix(".heartbeat")
    try:
        beat = heartbeat.stat().st_mtime_ns
    except OSError:  # not there yet, or between two names while it is written anew
        beat = one.last_beat
    if beat != one.last_beat:
        one.last_beat, one.last_word = beat, time.monotonic()
    return finished


def _take(one: Following, state: JobState) -> None:
    one.state = state if state.state != "UNKNOWN" else one.state
    if not state.ended:
        one.first_ended = None
    elif one.first_ended is None:
        one.first_ended = time.monotonic()
    waits = not state.answered and one.last_beat == 0  # perhaps in the queue of a controller that is away
    if waits or state.state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"):
        one.last_known = time.monotonic()


def _is_over(one: Following) -> bool:
    now = time.monotonic()
    sure = one.first_ended is not None and now > one.first_ended + SURE_AFTER_S
    return sure or now > max(one.last_word, one.last_known) + LOST_AFTER_S
