"""The heartbeat of an agent, written by a separate process: imports, forks and driver calls exceed its period.

It is written while the agent's main loop runs, however slowly, and stops with the agent. So silence means that the
agent or its node is lost, not that the agent is busy.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import get_args

from harness.core.errors import DiskFullError
from harness.core.run.run_dir import write_json
from harness.node.coordination.rendezvous import HEARTBEAT_S, AgentState, Heartbeat
from harness.node.process import die_with

STUCK_S = 900.0  # an agent whose main loop makes no iteration for this long counts as hung
TROUBLE_BYTES = 2000  # of a message in a heartbeat
_STATES: tuple[AgentState, ...] = get_args(AgentState)


class HeartbeatWriter:
    """Owns the heartbeat file. Call `start` before torch is imported, so that the forked process stays small."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self.host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()  # as Slurm names it, where it does
        self._ticked = RawValue("d", time.monotonic())
        self._state = RawValue("i")  # index in _STATES
        self._trouble = RawArray("c", TROUBLE_BYTES)
        self._process: BaseProcess | None = None

    def start(self, state: AgentState) -> None:
        self._ticked.value, self._state.value = time.monotonic(), _STATES.index(state)
        self._write(os.getpid())
        child = multiprocessing.get_context("fork").Process(target=self._run, args=(os.getpid(),), daemon=True)
        child.start()
        self._process = child

    def tick(self, state: AgentState = "ready") -> None:
        """Note an iteration of the agent's main loop; write a new state at once.

        DiskFullError when the disk of the run directory is full.
        """
        if self._process is not None and self._process.exitcode == DiskFullError.process_exit_code:
            raise DiskFullError(f"cannot write {self.path}: no space left on its disk")
        self._ticked.value = time.monotonic()
        if self._state.value != _STATES.index(state):
            self._state.value = _STATES.index(state)
            self._write(os.getpid())

    def report(self, trouble: str) -> None:
        """Publish why no further cell may start on this node, for the other agents."""
        self._trouble.value = trouble.encode()[: TROUBLE_BYTES - 1]
        self._write(os.getpid())

    def stop(self) -> None:
        """Stop the process and write a last heartbeat with the state "ended"."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._state.value = _STATES.index("ended")
        self._write(os.getpid())

    def _run(self, agent: int) -> None:
        # Not the inherited handler: an agent that exits without `stop` sends SIGTERM and waits for this process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(agent)
        while time.monotonic() < self._ticked.value + STUCK_S:
            time.sleep(HEARTBEAT_S)
            try:
                self._write(agent)
            except DiskFullError:  # `tick` raises it again in the agent
                os._exit(DiskFullError.process_exit_code)
            except OSError:
                pass  # the file system may be unavailable for a moment; only a long silence counts

    def _write(self, agent: int) -> None:
        state = _STATES[self._state.value]
        trouble = self._trouble.value.decode(errors="replace")
        write_json(
            self.path,
            Heartbeat(time=time.time(), state=state, token=self.token, pid=agent, host=self.host, trouble=trouble),
        )
