"""The launcher's process: uncaught errors, signals, garbage collection.

An uncaught error becomes a one-line message, exit code 3, and a traceback in a file that the message names. SIGTERM and
SIGHUP end a launcher as Ctrl-C does: running cells are stopped, finished ones are judged.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from harness.core.errors import HarnessError, InfrastructureError, InputError, InternalError, Problem
from harness.core.secrets import redacted

ERROR_FILE = "internal-error.txt"


@contextmanager
def tracebacks_in(folder: Path) -> Iterator[None]:
    """Turn an uncaught exception into InfrastructureError or InternalError, its traceback written into `folder`."""
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:
        raise uncaught(error, folder) from error


def uncaught(error: Exception, folder: Path | None = None) -> HarnessError:
    """Return the error to report for an uncaught exception: OSError and MemoryError are not defects of the harness."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # only the user names files of any length
        return InputError(Problem(message="the name is too long", file=str(error.filename or "") or None))
    kept = keep_traceback(error, folder)
    if isinstance(error, OSError):
        what = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
        what += "; raise the limit, e.g. ulimit -n 65536" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        return InfrastructureError(f"cannot continue: {what}{kept and f' (traceback in {kept})'}")
    if isinstance(error, MemoryError):
        return InfrastructureError(f"cannot continue: out of memory{kept and f' (traceback in {kept})'}")
    return InternalError(f"internal error: {brief(error)}{kept and f'; please report it with {kept}'}")


def brief(error: BaseException) -> str:
    """Type and first line of an exception, at most 300 characters."""
    first = (str(error).splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def keep_traceback(error: BaseException, folder: Path | None = None, name: str = ERROR_FILE) -> str:
    """Append the traceback to a file in the folder, else to a temporary file; returns its path, empty if both fail."""
    text = redacted("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    if folder is not None and folder.is_dir():  # a removed run directory is not created again
        try:
            return _append(folder / name, text)
        except (OSError, InputError):
            pass  # full, read-only or a link; the temporary folder may still work
    try:
        descriptor, path = tempfile.mkstemp(prefix="harness-error-", suffix=".txt")
        os.close(descriptor)
        return _append(Path(path), text)
    except OSError:
        return ""


def _append(path: Path, text: str) -> str:
    from harness.core.run.run_dir import appending  # not for --help, which loads this module

    with appending(path) as stream:
        stream.write(f"{text}\n".encode(errors="backslashreplace"))
    return str(path)


class Stopped(KeyboardInterrupt):
    """A signal that asks the process to end; its argument is the signal's name."""


def end_on_signals() -> None:
    """Raise Stopped on SIGTERM and SIGHUP, unless the caller ignores them, as nohup does with SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise_stopped)


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number).name)


def signal_name(error: BaseException) -> str:
    """Name of the signal that raised a KeyboardInterrupt."""
    return str(error) if isinstance(error, Stopped) and str(error) else "SIGINT"


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the collector off, which would visit millions of long-lived objects without cycles again and again."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
