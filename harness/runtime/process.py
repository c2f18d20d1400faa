"""Setup and end of every process on a node: log to a file, die with the parent, end at once."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from harness.core.run.run_dir import descriptor_of, refuse_links
from harness.core.secrets import secret_values, without_secrets_in

_PR_SET_PDEATHSIG = 1


def end_process(code: int) -> NoReturn:
    """End this process, whose files are written, without the interpreter's cleanup.

    With torch and Megatron loaded the cleanup takes a second, for which the launcher would wait after the last cell.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def log_to(path: Path) -> None:
    """Append this process's stdout and stderr, including those of C++ code, to a file."""
    descriptor = descriptor_of(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # The descriptors, not sys.stdout: NCCL, glibc and faulthandler write to them directly.
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def remove_secrets(logs: Iterable[Path]) -> None:
    """Remove secrets, and the values of this process's secret variables, from logs that are no longer written to."""
    values = secret_values(os.environ)
    for log in logs:
        without_secrets_in(log, values)


def other_threads() -> list[str]:
    """Return the names of the threads of this process except the calling one, sorted (Linux)."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.get_native_id():
            with suppress(OSError):  # the thread has just exited
                names.append((task / "comm").read_text(encoding="utf-8", errors="replace").strip())
    return sorted(names)


def end_session() -> None:
    """Kill every other process of the session that this process leads; RuntimeError if it leads none (Linux).

    Processes that ranks started, such as upstream's writers of checkpoints, may outlive a rank that was killed.
    """
    leader, session = os.getpid(), os.getsid(0)
    if leader != session:
        # Without a session of its own, the loop below would kill the launcher's whole terminal.
        raise RuntimeError(f"process {leader} does not lead session {session}")
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != leader:
            with suppress(OSError):  # the process has just ended
                if os.getsid(int(folder.name)) == session:
                    os.kill(int(folder.name), signal.SIGKILL)


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Have tempfile create this process's temporary files in `folder`, which is removed at the end.

    torch elastic creates a folder and a file per cell and never removes them. If the supervisor is killed, they stay in
    the run directory, not in /tmp.
    """
    refuse_links(folder)
    folder.mkdir(parents=True, exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent (a pid) exits: no rank outlives a killed agent (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent exited before the call
        os.kill(os.getpid(), signal.SIGKILL)
