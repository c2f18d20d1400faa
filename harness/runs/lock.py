"""Lets one launcher at a time follow a run: two would both rerun its lost cells."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.run.run_dir import RunDir, appending, opened
from harness.infra import screen

UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # Lustre without -o flock, NFS without lockd

_HOLDER = re.compile(r"pid (?P<pid>\d+) on (?P<host>.+)")


def unlocked(folder: Path) -> str:
    """Return the warning for a folder whose file system has no locks."""
    return (
        f"warning: the file system of {folder} has no locks (flock), so nothing stops a second harness from using "
        "it at the same time; do not start one"
    )


def launcher_of(run: RunDir) -> str | None:
    """Return the process that holds the run's lock, e.g. "pid 12 on host"; None when no process holds it.

    Without locks it goes by the name that a launcher leaves in the file until it ends, and says if that is unsure.
    """
    try:
        with opened(run.root / "launcher.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                holder = lock.read().decode("utf-8", "replace").strip()
                if isinstance(error, BlockingIOError):
                    return holder or "unknown"
                return _without_locks(holder) if error.errno in UNSUPPORTED else None
    except OSError:
        pass
    return None


def _without_locks(holder: str) -> str | None:
    """Return what is known of a launcher that wrote its name and did not remove it, on a file system without locks."""
    named = _HOLDER.fullmatch(holder)
    if named is None or named["host"] != socket.gethostname():
        return f"unknown: the file system has no locks; {holder} has not said that it ended" if holder else None
    return holder if Path(f"/proc/{named['pid']}").exists() else None


@contextmanager
def only_launcher(run: RunDir) -> Iterator[None]:
    """Hold the run's lock, which the kernel frees when this process ends; InputError when another process holds it."""
    with appending(run.root / "launcher.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.readall().decode("utf-8", "replace").strip() or "unknown"
            hint = "see its progress with harness status, or end that launcher to follow the run from here"
            raise InputError(
                Problem(message=f"another launcher follows this run: {holder}", file=str(run.root), hint=hint)
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            screen.err(f"harness: {unlocked(run.root)}")
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            lock.truncate(0)  # where there are no locks, `launcher_of` takes an empty file as the end of the launcher
