"""Programs of tests in processes of their own, forked from one that has imported torch and Megatron once.

For what cannot be undone in a process, such as stubs. Importing costs seconds, a fork nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import warnings
from pathlib import Path

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "megatron.core.pipeline_parallel",
        "megatron.core.models.gpt",
        "harness.probe.run",
    ]
)


def run(program: str, *arguments: str) -> str:
    """Run the text of a program as `python -W ignore -c` does; what it printed, in an AssertionError if it fails."""
    with tempfile.NamedTemporaryFile() as printed:
        process = _PROCESSES.Process(target=_program, args=(program, arguments, printed.name))
        process.start()
        process.join()
        text = Path(printed.name).read_text(errors="replace")
        assert process.exitcode == 0, text[-3000:]
        return text


def _program(program: str, arguments: tuple[str, ...], printed: str) -> None:
    with Path(printed).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["-c", *arguments]
    warnings.simplefilter("ignore")
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
