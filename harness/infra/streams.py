"""stdout and stderr of the command line: a failed write never changes a verdict."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO


class _Raw(io.FileIO):
    """A descriptor that ignores a closed pipe: `harness report RUN | head` must end as it does without the pipe.

    A write to a closed terminal fails with EIO, besides the signal SIGHUP.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._ignored = (errno.EPIPE, errno.EIO) if self.isatty() else (errno.EPIPE,)

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in self._ignored:
                raise
            return len(memoryview(data).cast("B"))


def own_streams() -> None:
    """Replace stdout and stderr: a closed pipe is ignored, and every character can be written.

    A character that the locale's encoding lacks is written as an escape. A stream that the caller has closed becomes
    the null device.
    """
    sys.stdout = _opened(1, sys.stdout)
    sys.stderr = _opened(2, sys.stderr)


def _opened(descriptor: int, old: TextIO | None) -> TextIO:
    try:
        os.fstat(descriptor)
    except OSError:
        old = None
    if old is None:
        descriptor = os.open(os.devnull, os.O_WRONLY)
    raw = _Raw(descriptor)
    encoding = old.encoding if old else "utf-8"
    # As Python does: stderr by line, stdout by line on a terminal only.
    by_line = descriptor == 2 or raw.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=by_line
    )


def flush_streams() -> str:
    """Flush stdout and stderr; returns the error, e.g. a full disk, or an empty string."""
    problem = ""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            problem = problem or f"the output cannot be written: {error.strerror}"
            descriptor = os.open(os.devnull, os.O_WRONLY)
            with contextlib.suppress(OSError):  # the stream has no descriptor
                os.dup2(descriptor, stream.fileno())  # else the flush at the end of the process would fail again
    return problem
