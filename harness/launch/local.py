"""Runs allocations on this machine: one agent process each, followed through its journal.

One agent may be started before the run is planned, so that it imports torch and Megatron meanwhile.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from harness.core.errors import InputError, Problem
from harness.core.run.events import Event, Journal
from harness.core.run.run_dir import RunDir, appending, refuse_links, text_of, write_atomic, write_json
from harness.core.run.run_plan import Allocation, RunPlan, WorkOrder, cell_attempts, write_work_order
from harness.core.secrets import secret_values, without_secrets_in
from harness.core.serialization import dumps, loads
from harness.core.stack import ReadyStack
from harness.launch.launcher import NO_JOBS, Cancelled, Observer, end_as_error
from harness.launch.stacks.interpreters import clean_environment
from harness.launch.stacks.node_code import agent_environment, copy_node_code, plugin_packages
from harness.matrix.cluster import ClusterProfile
from harness.matrix.schema.sections import Launch
from harness.runs.logs import tail

Listener = Callable[[Event], None]
POLL_S = 0.05
STOP_GRACE_S = 10.0
LOG_LINES = 15  # of a failed agent's log, quoted in the results of its cells
MAX_AGENTS = 4  # at once; each holds torch and Megatron in memory
AHEAD_COMMAND = (sys.executable, "-m", "harness.runtime.agent_ahead")


def cores() -> int:
    """Return CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def default_parallel_ranks() -> int:
    """Return the ranks that may run at once: two per core, since ranks of small cells mostly wait for each other."""
    return 2 * cores()


def gpus_here(devices: Path = Path("/dev")) -> int:
    """Return the number of GPUs of this machine, by the device files of NVIDIA's driver."""
    return len([file for file in devices.glob("nvidia*") if file.name.removeprefix("nvidia").isdigit()])


def at_once(agents: int, ranks: int, *, interleaved: bool, gpus: int) -> int:
    """Return how many agents may run at once: no more than cores, since an agent keeps one busy while it imports.

    With GPUs only one, since two would assign the same GPUs to their cells. `interleaved`: allocations of interleaved
    cells, which need both agents: one of the two waits while the other runs.
    """
    if interleaved:
        return max(2, min(agents, cores(), ranks, MAX_AGENTS))
    return 1 if gpus else max(1, min(agents, cores(), ranks, MAX_AGENTS))


def agent_command(run: RunDir, allocation: str, stack: ReadyStack | None = None) -> list[str]:
    """Return the command line of an agent. `stack`: None for the environment of the harness itself."""
    python = stack.python if stack else sys.executable
    return [python, "-m", "harness.runtime.agent", *_arguments(run, allocation)]


def _arguments(run: RunDir, allocation: str) -> list[str]:
    return [str(run.root), allocation, "--attached-to", str(os.getpid())]


class LocalLauncher:
    """A Launcher for this machine. Cells end with this process."""

    detached = False

    def __init__(self, attempts: Mapping[str, int] | None = None, ahead: AgentAhead | None = None) -> None:
        """`attempts`: cell -> number of its attempt; 1 for others. `ahead`: the agent of cells without a stack."""
        self.attempts, self.ahead = attempts, ahead

    def write(self, run: RunDir, plan: RunPlan, launch: Launch, profile: ClusterProfile, file: Path | None) -> None:
        write_json(_launch_file(run), {"parallel_ranks": launch.parallel_ranks})

    def describe(self, run: RunDir, plan: RunPlan) -> list[str]:
        commands = {
            allocation.name: agent_command(run, allocation.name, plan.stacks.get(allocation.stack))
            for allocation in plan.allocations
        }
        return [f"{name}: {shlex.join(command)}" for name, command in commands.items()]

    def submit(self, run: RunDir, plan: RunPlan, say: Callable[[str], None]) -> int:
        raise InputError(NO_JOBS)

    def follow(self, run: RunDir, plan: RunPlan, observer: Observer) -> None:
        ranks = _parallel_ranks(run)
        run_allocations(run, plan.allocations, plan.stacks, observer.event, ranks, self.attempts, self.ahead)

    def cancel(self, run: RunDir, plan: RunPlan) -> Cancelled:
        raise InputError(Problem(message="ran on this machine, not on a cluster: it has no jobs", file=str(run.root)))


def _launch_file(run: RunDir) -> Path:
    """Return the file in which `harness resume` finds how many ranks may run at once."""
    return run.root / "launch.json"


def _parallel_ranks(run: RunDir) -> int | None:
    try:
        recorded = loads(text_of(_launch_file(run)))["parallel_ranks"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return recorded if isinstance(recorded, int) else None


def run_allocations(
    run: RunDir,
    allocations: Sequence[Allocation],
    stacks: Mapping[str, ReadyStack],
    listener: Listener,
    parallel_ranks: int | None = None,
    attempts: Mapping[str, int] | None = None,
    ahead: AgentAhead | None = None,
) -> None:
    """Run allocations, each in its stack, and pass on the agents' events until all have ended.

    The two with interleaved cells run first, side by side and without others, so that they are timed on an idle
    machine. An agent that fails ends only its own cells. On KeyboardInterrupt the agents are stopped first. Where there
    are GPUs, all other agents run one after another (`at_once`). `attempts`: cell -> number of its attempt, else 1.
    `ahead`: becomes the agent of an allocation without a stack.
    """
    ranks = parallel_ranks or default_parallel_ranks()
    if any(allocation.stack in stacks for allocation in allocations):
        copy_node_code(run.node_code, plugin_packages(run))
    for interleaved in (True, False):
        members = [allocation for allocation in allocations if allocation.interleaved is interleaved]
        beside = at_once(len(members), ranks, interleaved=interleaved, gpus=gpus_here())
        for member in members:
            numbered = cell_attempts((cell, (attempts or {}).get(cell, 1)) for cell in member.cells)
            write_work_order(run, member.name, WorkOrder(cells=numbered, parallel_ranks=max(1, ranks // beside)))
        _side_by_side(run, members, stacks, listener, beside, attempts or {}, ahead)


def _side_by_side(
    run: RunDir,
    allocations: Sequence[Allocation],
    stacks: Mapping[str, ReadyStack],
    listener: Listener,
    at_once: int,
    attempts: Mapping[str, int],
    ahead: AgentAhead | None,
) -> None:
    """Run at most `at_once` agents at a time."""
    waiting, running = list(allocations), list[_Agent]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                allocation = waiting.pop(0)
                running.append(_Agent(run, allocation, stacks.get(allocation.stack), attempts, ahead))
            for agent in list(running):
                # Polled before the journal is read, so that no last event is missed.
                ended = agent.process.poll() is not None
                for event in agent.journal.new_events():
                    listener(event)
                if ended:
                    running.remove(agent)
                    agent.close()
            time.sleep(POLL_S)
    finally:
        for agent in running:
            agent.process.terminate()  # all first, since each needs time to end its cells
        for agent in running:
            agent.stop()


class _Agent:
    """The agent process of an allocation."""

    def __init__(
        self,
        run: RunDir,
        allocation: Allocation,
        stack: ReadyStack | None,
        attempts: Mapping[str, int],
        ahead: AgentAhead | None,
    ) -> None:
        self.run, self.allocation, self.attempts = run, allocation, attempts
        self.log = run.submission(allocation.name, ".log")
        self.journal = Journal(run.agent_journal(allocation.name, 0))
        list(self.journal.new_events())  # skips events of an earlier launch
        write_atomic(self.log, "")
        started_ahead = ahead.begin(_arguments(run, allocation.name), self.log) if ahead and not stack else None
        self.ahead = ahead if started_ahead else None
        self.process = started_ahead or self._start(stack)

    def _start(self, stack: ReadyStack | None) -> subprocess.Popen[bytes]:
        with appending(self.log) as stream:
            return subprocess.Popen(
                agent_command(self.run, self.allocation.name, stack),
                # `python -m` looks in the current folder first, and the caller's may hold another megatron.
                cwd=self.run.root if stack else None,
                env=clean_environment(agent_environment(stack, self.run.node_code)) if stack else None,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        """Complete the log of the agent, which has ended; if it failed, write results for cells without one."""
        self._complete_log()
        if self.process.returncode:
            log = tail(self.log, LOG_LINES) if self.log.exists() else "the log is gone"  # with the run directory
            why = f"the agent ended with exit code {self.process.returncode}; see {self.log}\n{log}"
            end_unfinished(self.run, self.allocation, why, self.attempts)

    def _complete_log(self) -> None:
        if self.ahead:
            self.ahead.add_output(self.log)
        without_secrets_in(self.log, secret_values(os.environ))

    def stop(self) -> None:
        if self.process.poll() is None:
            try:
                self.process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._complete_log()


def end_without_agent(run: RunDir, cell: str, stack: ReadyStack) -> None:
    """Write ERROR as the result of a cell whose stack could not be built, or cannot run the probe."""
    end_as_error(run, cell, 1, f"stack {stack.requested.name} cannot be used: {stack.error}")


def end_unfinished(run: RunDir, allocation: Allocation, reason: str, attempts: Mapping[str, int]) -> None:
    """Write ERROR as the result of each cell that a failed agent left without one."""
    for cell in allocation.cells:
        end_as_error(run, cell, attempts.get(cell, 1), reason)


class AgentAhead:
    """An agent in the environment of the harness that waits for its run (harness/runtime/agent_ahead.py)."""

    def __init__(self, run_parent: Path, output: BinaryIO) -> None:
        """`run_parent`: shown in lists of processes. `output`: of the imports, since there is no run directory yet."""
        self._output = output
        command = [*AHEAD_COMMAND, str(os.getpid()), str(run_parent)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        self._begun = False

    def begin(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes] | None:
        """Make it the agent with these arguments, whose process the caller ends; None if it has begun or has ended."""
        stream = self._process.stdin
        if stream is None or stream.closed:
            return None
        with suppress(BrokenPipeError), stream:
            stream.write((dumps({"arguments": arguments, "log": str(log)}) + "\n").encode())
            stream.flush()
            self._begun = True
        return self._process if self._begun else None

    def add_output(self, log: Path) -> None:
        """Put the output of the imports before the rest of the log; only once the process has ended."""
        self._output.seek(0)
        if (earlier := self._output.read()) and log.exists():
            refuse_links(log)
            log.write_bytes(earlier + log.read_bytes())

    def end(self) -> None:
        """End the process, unless it has begun: then the launcher follows it to its end."""
        if not self._begun:
            with self._process as process:  # closes its standard input
                process.kill()


@contextmanager
def agent_ahead(run_parent: Path) -> Iterator[AgentAhead]:
    """Start an agent; it is ended at the end of the context if it has no run by then."""
    with tempfile.TemporaryFile() as output:
        ahead = AgentAhead(run_parent, output)
        try:
            yield ahead
        finally:
            ahead.end()
