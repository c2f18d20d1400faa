"""Runs allocations on this machine: one agent process each, watched through its journal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.edge.journal import Journal
from harness.edge.pythons import clean_environment
from harness.edge.run_dir import RunDir, write_json
from harness.edge.stacks import agent_environment, copy_node_code
from harness.words.errors import InfrastructureError
from harness.words.outcomes import Rejection
from harness.words.records import CellResult
from harness.words.run_plan import Allocation
from harness.words.stack import ReadyStack

Listener = Callable[[dict[str, Any]], None]
POLL_S = 0.05
STOP_GRACE_S = 10.0


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0))


def default_parallel_ranks() -> int:
    """Ranks that may run at once: two per core, since ranks of small cells mostly wait for each other."""
    return 2 * cores()


def agent_command(run: RunDir, allocation: str, stack: ReadyStack | None = None) -> list[str]:
    """`stack`: None for the environment of the harness itself."""
    python = stack.python if stack else sys.executable
    return [python, "-m", "harness.node.agent", str(run.root), allocation, "--attached-to", str(os.getpid())]


def write_order(run: RunDir, allocation: Allocation, *, attempt: int, parallel_ranks: int) -> None:
    """The agent's order: which cells, which attempt, how many ranks at once."""
    cells = [{"cell": cell, "attempt": attempt} for cell in allocation.cells]
    write_json(run.submission(allocation.name), {"cells": cells, "parallel_ranks": parallel_ranks})


def run_allocation(run: RunDir, allocation: Allocation, listener: Listener, stack: ReadyStack | None = None) -> None:
    """Start the allocation's agent, in its stack, and pass its journal's events on until it ends.

    InfrastructureError when the agent fails; KeyboardInterrupt passes through after the agent was stopped.
    """
    log = run.submission(allocation.name, ".log")
    journal = Journal(run.agent_journal(allocation.name, 0))
    with log.open("wb") as stream:
        agent = subprocess.Popen(
            agent_command(run, allocation.name, stack),
            # Its own folder: `python -m` looks there first, and the caller's may hold another megatron.
            cwd=run.root if stack else None,
            env=clean_environment(agent_environment(stack, copy_node_code(run.node_code))) if stack else None,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        while agent.poll() is None:
            for event in journal.new_events():
                listener(event)
            time.sleep(POLL_S)
    finally:
        _stop(agent)
    for event in journal.new_events():
        listener(event)
    if agent.returncode:
        raise InfrastructureError(f"the agent ended with exit code {agent.returncode}; see {log}\n{_tail(log)}")


def end_without_agent(run: RunDir, cell: str, stack: ReadyStack) -> None:
    """The result of a cell whose stack could not be made, or is one that the probe cannot run in."""
    if stack.rejection:
        _end(run, cell, "rejected", stack.rejection.reason, stack.rejection)
    else:
        _end(run, cell, "error", f"stack {stack.asked.name} cannot be made: {stack.error}", None)


def end_unfinished(run: RunDir, allocation: Allocation, reason: str) -> None:
    """Results for the cells that an agent which died has left without one."""
    for cell in allocation.cells:
        if not run.attempt(cell).result.exists():
            _end(run, cell, "error", reason, None)


def _end(run: RunDir, cell: str, status: str, reason: str, rejection: Rejection | None) -> None:
    now = time.time()
    result = CellResult(cell=cell, attempt=1, status=status, reason=reason, rejection=rejection)
    write_json(run.attempt(cell).result, replace(result, started=now, finished=now))


def _stop(agent: subprocess.Popen[bytes]) -> None:
    if agent.poll() is None:
        agent.terminate()
        try:
            agent.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
