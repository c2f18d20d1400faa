"""The heartbeat of an agent, from a process of its own: imports, forks and calls into a driver last longer than a beat.

It beats while the agent's main loop turns, however slowly, and stops for good with the agent. So silence means that the
node or the agent is gone, not that the agent is busy.
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

from harness.core.errors import DiskFullError
from harness.core.run.run_dir import write_json
from harness.node.coordination.rendezvous import BEAT_S, Beat
from harness.node.process import die_with

STUCK_S = 900.0  # an agent whose main loop has not turned for so long is beyond help
_STATE_BYTES = 16


class Heart:
    """Owns the heartbeat file. `begin` before torch is imported: the process it forks stays small."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self._turned = RawValue("d", time.monotonic())
        self._state = RawArray("c", _STATE_BYTES)
        self._process: BaseProcess | None = None

    def begin(self, state: str) -> None:
        self._turned.value, self._state.value = time.monotonic(), state.encode()
        self._write(os.getpid())
        child = multiprocessing.get_context("fork").Process(target=self._beat, args=(os.getpid(),), daemon=True)
        child.start()
        self._process = child

    def turn(self, state: str = "ready") -> None:
        """The agent's main loop has turned; a new state is written at once.

        DiskFullError when the heartbeat has found no room on the disk of the run directory.
        """
        if self._process is not None and self._process.exitcode == DiskFullError.process_exit_code:
            raise DiskFullError(f"cannot write {self.path}: no room on its disk")
        self._turned.value = time.monotonic()
        if self._state.value != state.encode():
            self._state.value = state.encode()
            self._write(os.getpid())

    def end(self) -> None:
        """The last beat says that the agent has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._state.value = b"ended"
        self._write(os.getpid())

    def _beat(self, agent: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent decides when both end
        die_with(agent)
        while time.monotonic() < self._turned.value + STUCK_S:
            time.sleep(BEAT_S)
            try:
                self._write(agent)
            except DiskFullError:  # `turn` raises it again in the agent
                os._exit(DiskFullError.process_exit_code)
            except OSError:
                pass  # the file system may be away for a moment; silence is what is looked at

    def _write(self, agent: int) -> None:
        state = bytes(self._state.value).decode()
        beat = Beat(time=time.time(), state=state, token=self.token, pid=agent, host=socket.gethostname())
        write_json(self.path, beat)
