"""An agent that imports torch and Megatron while its launcher still plans the run.

    python -m harness.runtime.agent_ahead LAUNCHER RUN_PARENT

One line on its standard input, a JSON object, gives the arguments of harness.runtime.agent and the file for its output.
Until then it writes no file, and it ends when the launcher (a pid) does or closes its standard input. RUN_PARENT is
there for lists of processes only.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from harness.core.serialization import loads
from harness.runtime import agent
from harness.runtime.load import loaded
from harness.runtime.process import end_process, log_to


def main() -> int:
    agent.prepare(int(sys.argv[1]))
    with suppress(Exception):  # the agent imports again, and records what is wrong
        loaded()
    line = sys.stdin.readline()
    if not line:  # nothing to run
        return 0
    begin = loads(line)
    sys.argv[1:] = begin["arguments"]
    log_to(Path(begin["log"]))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # ranks inherit it
    return agent.main()


if __name__ == "__main__":
    end_process(main())
