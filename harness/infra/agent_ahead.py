"""An agent that is started before the run is planned, so that it imports torch and Megatron meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from harness.core.run.run_dir import refuse_links
from harness.core.serialization import dumps

COMMAND = (sys.executable, "-m", "harness.node.agent_ahead")


class AgentAhead:
    """An agent in the environment of the harness that waits for its run (harness/node/agent_ahead.py)."""

    def __init__(self, run_parent: Path, output: BinaryIO) -> None:
        """`run_parent`: shown in lists of processes. `output`: of the imports, since there is no run directory yet."""
        self._output = output
        command = [*COMMAND, str(os.getpid()), str(run_parent)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        self._run: tuple[str, ...] | None = None  # the arguments with which it has begun
        self._left = False  # to a launcher, which follows it to its end

    @property
    def begun(self) -> bool:
        return bool(self._run)

    def begin(self, arguments: Sequence[str], log: Path) -> bool:
        """Make it the agent with these arguments; False if it is another one already, or has ended."""
        stream = self._process.stdin
        if stream is not None and not stream.closed:
            with suppress(BrokenPipeError), stream:
                stream.write((dumps({"arguments": arguments, "log": str(log)}) + "\n").encode())
                stream.flush()
                self._run = tuple(arguments)
        return self._run == tuple(arguments)

    def leave(self) -> subprocess.Popen[bytes]:
        """The process, which the caller now ends."""
        self._left = True
        return self._process

    def add_output(self, log: Path) -> None:
        """Put the output of the imports before the rest of the log; only once the process has ended."""
        self._output.seek(0)
        if (earlier := self._output.read()) and log.exists():
            refuse_links(log)
            log.write_bytes(earlier + log.read_bytes())

    def end(self) -> None:
        """End the process, and its cells, unless it is left to a launcher."""
        if not self._left:
            with self._process as process:  # closes its standard input
                if self._run:
                    process.terminate()
                else:
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
