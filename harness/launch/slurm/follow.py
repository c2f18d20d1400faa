"""Follows the jobs of a run until they end, by the journals and heartbeats of their agents and by Slurm.

The agents' files decide. Slurm is asked, in one call for all jobs and at growing intervals, only whether jobs whose
agents have not finished may still be running. Only its answers end a job, never time alone: an answer may take a
minute, and this process may be stopped.

How a job ended is recorded, and unfinished cells get a result. Cells that infrastructure ended are run again, up to a
limit, for causes that Slurm or the agents report: agents report nodes that they lost and GPUs that broke, since with
`srun --kill-on-bad-exit` such a job is FAILED long before Slurm notices the node. They report a full disk by their exit
code; `resume` continues such a run once there is room. Every attempt is kept and judged. A cell that passes on a later
one is FLAKY, unless an earlier one failed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.run.events import Event, Failed, Finished, JobEnded, Journal, Refused, Retry, note, read_events
from harness.core.run.job_start import was_cut_off
from harness.core.run.records import CellResult
from harness.core.run.run_dir import AttemptDir, RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import Allocation, RunPlan, newest_work_order, read_work_order
from harness.core.secrets import secret_values, without_secrets_in
from harness.core.serialization import from_jsonable, loads
from harness.launch.launcher import end_as_error
from harness.launch.slurm.client import JobState, Pending, SlurmClient
from harness.launch.slurm.sbatch_template import Job, job_name
from harness.launch.slurm.submit import order_allocation, profile_of, render
from harness.runs.logs import job_logs

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
RETRIED = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})


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
        # Consecutive answers only: one that shows it alive starts the count again.
        self.first_ended = (self.first_ended or now) if state.ended else None
        self.first_unknown = None if listed or may_wait else (self.first_unknown or now)
        self.state = state if listed else self.state

    def restarted(self, journal: Path) -> None:
        """Forget what was seen of the earlier start: Slurm has started the job again."""
        self.journal, self.state, self.last_beat = Journal(journal), JobState(), 0
        self.first_ended = self.first_unknown = None

    @property
    def alive(self) -> bool:
        """Whether the newest answer, or a sign of life since the job became unknown, shows that it has not ended."""
        heard = self.first_unknown is None or self.last_word > self.first_unknown
        return self.asked is not None and heard and self.first_ended is None and self.state.state != "COMPLETING"

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
        for allocation in allocations:
            journal = Journal(self.run.agent_journal(allocation.name, 0))
            self.waiting.append(Following(allocation, ids[allocation.name], journal, last_word=self.turns.now))

    def ended(self, *, wait: bool = True) -> Iterator[Ended]:
        """Pass on the agents' events; yield every allocation as soon as it has ended, until none is left.

        `wait` False: until those that are left are known to have jobs that have not ended.
        """
        while self.waiting and (wait or not all(following.alive for following in self.waiting)):
            self.turns.next()
            for following in list(self.waiting):
                finished = self._pass_on(following)
                if finished or following.over:
                    self.waiting.remove(following)
                    yield Ended(following.allocation, following.job, following.state, finished)
            if self.queries.poll(self.waiting, self.turns.now):
                self.show_queue(queue_text(self.queries.pending))
            self.sleep(max(LOOK_S, LOOK_PER_JOB_S * len(self.waiting)))

    def _pass_on(self, following: Following) -> bool:
        """Pass new events to the listener; return whether the leading agent of the newest start has finished."""
        # Before the claims: events of the old journal must not be lost when the follower moves to the next one.
        finished = self._new_events(following)
        while (claim := self.run.read_claim(following.allocation.name, following.claims + 1)) is not None:
            following.claims += 1
            following.job = claim.job
            journal = self.run.agent_journal(claim.order, 0)
            if journal != following.journal.path:
                following.restarted(journal)
                finished = False
            following.last_word = self.turns.now
            finished |= self._new_events(following)
        beat = _beat_time(following.journal.path.with_suffix(".heartbeat"))
        # Any change is a sign of life. Its time is of the file system's clock, and is not compared with this one.
        if beat and beat != following.last_beat:
            following.last_beat, following.last_word = beat, self.turns.now
        return finished

    def _new_events(self, following: Following) -> bool:
        finished = False
        for event in following.journal.new_events():
            following.last_word = following.last_event = self.turns.now
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
        # One at a time: a controller that is slow must not get a second question before it has answered the first.
        self.thread: Executor = ThreadPoolExecutor(max_workers=1)
        self.requested: Future[tuple[dict[str, JobState], dict[str, Pending]]] | None = None
        self.pending: dict[str, Pending] = {}  # of the last answer
        self.pause_s = FIRST_ASK_S
        self.asked = 0.0
        self.last_poll = -FIRST_ASK_S  # the first query is made at once: a job may have ended before the launcher began

    def poll(self, waiting: Sequence[Following], now: float) -> bool:
        """Take an answer that has arrived, or query again when it is time; return whether there was an answer."""
        silent = [following for following in waiting if now > following.last_word + SILENT_S]
        if self.requested is None:
            doubtful = any(following.first_ended is not None for following in waiting)
            doubtful |= any(following.last_beat or following.first_unknown is not None for following in silent)
            if waiting and now >= self.last_poll + (DOUBT_ASK_S if doubtful else self.pause_s):
                self.asked = now
                jobs, unheard = (
                    [following.job for following in waiting],
                    frozenset(following.job for following in silent),
                )
                self.requested = self.thread.submit(self._ask, jobs, unheard)
            return False
        if not self.requested.done():
            return False
        (states, self.pending), self.requested = self.requested.result(), None
        for following in waiting:
            if following.job in states:  # the others were added after the query
                following.answered(states[following.job], self.asked, now)
        moved = any(following.last_event >= self.last_poll for following in waiting)
        self.pause_s = FIRST_ASK_S if moved else min(self.pause_s * 1.5, LONGEST_ASK_S)
        self.last_poll = now
        return True

    def _ask(self, jobs: Sequence[str], silent: frozenset[str]) -> tuple[dict[str, JobState], dict[str, Pending]]:
        states = self.client.states(jobs, silent)
        return states, self.client.pending([job for job in jobs if states[job].state == "PENDING"])


def queue_text(pending: Mapping[str, Pending]) -> str:
    """Return e.g. "3 jobs wait in the queue: Resources (2), Priority (1); first start expected at
    2027-01-31T12:00:00".
    """
    if not pending:
        return ""
    reasons = Counter(job.reason for job in pending.values())
    listed = ", ".join(
        f"{reason} ({count})" for reason, count in sorted(reasons.items(), key=lambda reason_count: -reason_count[1])
    )
    start = min((job.start for job in pending.values() if job.start), default="")
    jobs = "1 job waits" if len(pending) == 1 else f"{len(pending)} jobs wait"
    return f"{jobs} in the queue: {listed}" + (f"; first start expected at {start}" if start else "")


def _beat_time(heartbeat: Path) -> int:
    try:
        return heartbeat.stat().st_mtime_ns
    except OSError:  # none yet, or being replaced
        return 0


def unfinished(run: RunDir, allocations: Iterable[Allocation]) -> list[Allocation]:
    """Return the allocations without a recorded end of their job."""
    done = {event.allocation for event in read_events(run.events) if isinstance(event, (JobEnded, Refused))}
    return [allocation for allocation in allocations if allocation.name not in done]


def second_agents(run: RunDir, allocation: Allocation) -> list[str]:
    """Return what second agents of a node say, of the newest start of an allocation's job."""
    order = run.newest_order(allocation.name)
    files = (run.second_agent(order, node) for node in range(allocation.nodes))
    return [str(loads(text_of(file))["reason"]) for file in files if file.exists()]


def close(run: RunDir, ended_allocation: Ended) -> None:
    """Record how a job ended, and write ERROR with the reason as the result of each cell that has none.

    Secrets are removed from its logs.
    """
    for log in job_logs(run, ended_allocation.allocation.array, ended_allocation.job):
        # Only now, when no process of the job writes to it any more.
        without_secrets_in(log, secret_values(os.environ))
    known_state = (
        f"{ended_allocation.state.state} (exit {ended_allocation.state.exit_code or '?'})"
        if ended_allocation.state.source
        else "unknown to Slurm"
    )
    how = (
        f"{ended_allocation.state.ending(ended_allocation.job)} before the cell ended"
        if ended_allocation.state.has_cause
        else f"job {ended_allocation.job} ended before the cell did"
    )
    reason = f"Slurm {how}: {known_state}" + (
        f" on {ended_allocation.state.nodes}" if ended_allocation.state.nodes else ""
    )
    reason += "; the run directory's disk was full" if ended_allocation.state.disk_full else ""
    for cell, attempt in newest_work_order(run, ended_allocation.allocation.name).attempts.items():
        end_as_error(run, cell, attempt, reason)
    over = ended_allocation.state.ended  # Slurm is not asked about an agent that finished
    ended_job = JobEnded(
        allocation=ended_allocation.allocation.name,
        array=ended_allocation.allocation.array,
        job=ended_allocation.job,
        state=ended_allocation.state.state if over else "",
        words=ended_allocation.state.ending(ended_allocation.job) if over else "",
    )
    note(run.events, ended_job)


def close_refused(run: RunDir, refused: Mapping[str, str]) -> None:
    """Record allocations that sbatch refused, and write an error for each of their cells; `resume` skips them."""
    for name, why in refused.items():
        for cell, attempt in newest_work_order(run, name).attempts.items():
            end_as_error(run, cell, attempt, why)
        note(run.events, Refused(allocation=name, why=why))


def allocations_of(run: RunDir, plan: RunPlan) -> list[Allocation]:
    """Return the planned allocations and those of retries so far."""
    retries = [event.allocation for event in read_events(run.events) if isinstance(event, Retry)]
    return [*plan.allocations, *retries]


def retry(run: RunDir, plan: RunPlan, ended: Ended, client: SlurmClient) -> list[Allocation]:
    """Make one new allocation, written and recorded but not submitted, for the cells that infrastructure ended, or
    none.
    """
    named = _failed_hosts(run, ended)
    announced = _announced(run, ended)
    # An agent that finished has a result for each cell, whatever Slurm then says of the job.
    if ended.finished or not (ended.state.state in RETRIED or ended.state.disk_full or named or announced):
        return []
    cells = _cut_off(run, plan, ended.allocation)
    if not cells or run.cancelled.exists():  # a cancelled run starts nothing
        return []
    why = f"job {ended.job} ended as {ended.state.state} on {ended.state.nodes or 'no node'}"
    why += ": the run directory's disk was full" if ended.state.disk_full else ""
    why += f": its agents reported {', '.join(named)}" if named else ""
    why += ": a signal announced its end" if announced else ""
    avoided = dict.fromkeys((*_excluded_from(run, ended.allocation), *_failed_nodes(ended, named, client)))
    return [_write_retry(run, plan, ended.allocation, cells, why, tuple(avoided))]


def keep_from_starting(plan: RunPlan, ended: Ended, client: SlurmClient) -> None:
    """Cancel a job that is no longer followed: Slurm may restart it, or it may still run unnoticed.

    A job that Slurm last showed in the queue stays: if it starts after all, its cells have results and do not run.
    """
    if not ended.finished and (ended.state.state in RETRIED or not (ended.state.ended or ended.state.waits)):
        client.cancel(job_name(plan.run_id, ended.allocation.array), [ended.job])


def retry_requested(run: RunDir, plan: RunPlan, requested: Collection[str]) -> list[Allocation]:
    """Make new allocations, written and recorded but not submitted, for cells that the user wants to run again.

    Only for cells whose newest attempt is over, however many attempts they have had, and on any node: by now those
    that failed may work again.
    """
    allocations = []
    remaining = set(requested)
    for allocation in reversed(allocations_of(run, plan)):  # retries follow the allocation that they repeat
        order = newest_work_order(run, allocation.name).attempts
        over = (cell for cell in order if cell in remaining and run.attempt(cell, order[cell]).result.exists())
        cells = {cell: order[cell] + 1 for cell in over}
        remaining -= set(order)
        if cells:
            allocations.append(_write_retry(run, plan, allocation, cells, "requested by the user"))
    return allocations


def _failed_events(run: RunDir, ended: Ended, nodes: Iterable[int]) -> list[Failed]:
    """Return how the agents of these nodes of a FAILED job failed."""
    if ended.state.state != "FAILED":
        return []
    order = run.newest_order(ended.allocation.name)
    events = (event for node in nodes for event in read_events(run.agent_journal(order, node)))
    return [event for event in events if isinstance(event, Failed)]


def _announced(run: RunDir, ended: Ended) -> bool:
    """Return whether the leader of a FAILED job started no further cell because a signal announced the job's end."""
    return any(event.announced for event in _failed_events(run, ended, [0]))


def _failed_hosts(run: RunDir, ended: Ended) -> tuple[str, ...]:
    """Return the hosts that the agents of a FAILED job report as lost or broken: by its leader, else by the other
    agents.
    """
    for nodes in ([0], range(1, ended.allocation.nodes)):
        hosts = dict.fromkeys(host for event in _failed_events(run, ended, nodes) for host in event.nodes)
        if hosts:
            return tuple(hosts)
    return ()


def _failed_nodes(ended: Ended, named: tuple[str, ...], client: SlurmClient) -> tuple[str, ...]:
    """Return the nodes to exclude: the node of a one-node job.

    Of several those that agents name or Slurm marks as unusable.
    """
    if not (named or ended.state.state in ("NODE_FAIL", "BOOT_FAIL")) or not ended.state.nodes:
        return ()
    if ended.allocation.nodes == 1:
        return (ended.state.nodes,)
    nodes = client.nodes_of_hosts(ended.state.nodes, named) or client.unusable(ended.state.nodes)
    return tuple(nodes.split(",")) if nodes else ()


def _excluded_from(run: RunDir, allocation: Allocation) -> tuple[str, ...]:
    """Return the nodes that a retry avoids because an earlier attempt of its cells failed there."""
    events = (event for event in read_events(run.events) if isinstance(event, Retry))
    return next((event.exclude for event in events if event.allocation.name == allocation.name), ())


def _cut_off(run: RunDir, plan: RunPlan, allocation: Allocation) -> dict[str, int]:
    """Return the number of the next attempt of each cell to run again."""
    again = {}
    for cell, attempt in newest_work_order(run, allocation.name).attempts.items():
        if _needs_another(run.attempt(cell, attempt)) and attempt < plan.max_attempts:
            again[cell] = attempt + 1
    # A launcher that was killed may have written the retry, or a part of it, already.
    retries = allocations_of(run, plan)[len(plan.allocations) :]
    ordered = {
        attempt_of_cell
        for retried in retries
        for attempt_of_cell in read_work_order(run, retried.name).attempts.items()
    }
    return {cell: number for cell, number in again.items() if (cell, number) not in ordered}


def _needs_another(attempt: AttemptDir) -> bool:
    """Return whether it did not end, or something other than the code under test ended it, before or after a resume."""
    results = [
        from_jsonable(CellResult, loads(text_of(path)))
        for path in (attempt.result, attempt.resumed.result)
        if path.exists()
    ]
    return not attempt.result.exists() or any(was_cut_off(result) for result in results)


def _new_name(run: RunDir, plan: RunPlan, earlier: Allocation, attempt: int) -> str:
    """Return a name that no allocation has: cells of one job may get the same attempt in different retries."""
    taken = {allocation.name for allocation in allocations_of(run, plan)}
    name = f"{earlier.name}-again{attempt}"
    return next(new for new in chain([name], (f"{name}-{number}" for number in count(2))) if new not in taken)


def _write_retry(
    run: RunDir,
    plan: RunPlan,
    earlier: Allocation,
    cells: dict[str, int],
    why: str,
    exclude: tuple[str, ...] = (),
) -> Allocation:
    name = _new_name(run, plan, earlier, max(cells.values()))
    allocation = replace(earlier, name=name, array=name, index=0, cells=tuple(cells))
    profile = profile_of(run)
    for cell, attempt in cells.items():
        # Of the first attempt: those of later ones may be missing if a launcher was killed while it wrote them.
        config = loads(text_of(run.attempt(cell, 1).config))
        write_json(run.attempt(cell, attempt).config, from_jsonable(CellConfig, config))
    ranks = read_work_order(run, earlier.name).parallel_ranks
    order_allocation(run, allocation, cells, parallel_ranks=ranks)
    job = Job(name=name, allocations=(allocation,), exclude=exclude)
    text = render(run, plan, job, profile, run.root / "submissions" / "template.sbatch.j2")
    write_atomic(run.submission(name, ".sbatch"), text)
    # Last: a retry that is recorded has all its files, and one that is not is written again.
    note(run.events, Retry(why=why, allocation=allocation, exclude=exclude))
    return allocation
