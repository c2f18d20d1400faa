"""An agent that is started before the run is planned, so that it imports torch and Megatron meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.core.serialization import dumps

COMMAND = (sys.executable, "-m", "harness.node.agent_ahead")


class AgentAhead:
    """An agent in the environment of the harness that waits for its run (harness/node/agent_ahead.py)."""

    def __init__(self, run_parent: Path, output: BinaryIO) -> None:
        """`run_parent`: shown in lists of processes. `output`: of the imports, since there is no run directory yet."""
        self._output = output
        command = [*COMMAND, str(os.getpid()), str(run_parent)]
        self._waiting: subprocess.Popen[bytes] | None = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        )

    def begin(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes] | None:
        """The process, which is now the agent with these arguments; None if it was one before, or has ended."""
        process, self._waiting = self._waiting, None
        if process is None or process.stdin is None:
            return None
        try:
            with process.stdin as stream:
                stream.write((dumps({"arguments": arguments, "log": str(log)}) + "\n").encode())
        except BrokenPipeError:
            process.wait()
            return None
        return process

    def add_output(self, log: Path) -> None:
        """Put the output of the imports before the rest of the log; only once the process has ended."""
        self._output.seek(0)
        if (earlier := self._output.read()) and log.exists():
            log.write_bytes(earlier + log.read_bytes())

    def end(self) -> None:
        """End the process unless it has begun a run."""
        if self._waiting is not None:
            with self._waiting as process:  # closes its standard input
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
