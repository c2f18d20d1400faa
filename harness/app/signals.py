"""SIGTERM and SIGHUP end a launcher as Ctrl-C does: running cells are stopped, finished ones are judged."""

from __future__ import annotations

import signal
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A signal that asks the process to end; its argument is the signal's name."""


def end_on_signals() -> None:
    """Raise Stopped on SIGTERM and SIGHUP, unless the caller ignores them, as nohup does with SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number).name)


def name_of(error: BaseException) -> str:
    """Name of the signal that raised a KeyboardInterrupt."""
    return str(error) if isinstance(error, Stopped) and str(error) else "SIGINT"
