"""Journals: JSON Lines files that one process appends to while others read them. Only the standard library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from harness.core.run.events import Event, from_line, to_line
from harness.core.run.run_dir import NotRegularError, appending, needs_room, opened
from harness.core.serialization import dumps, loads


def note(path: Path, event: Event) -> None:
    """Append an event with the current time. DiskFullError if the line does not fit on the disk."""
    append_event(path, replace(event, time=time.time()))


def append_event(path: Path, event: Event) -> None:
    """Append an event with its own time. DiskFullError if the line does not fit on the disk."""
    append_line(path, to_line(event))


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line, whole or not at all; DiskFullError if it does not fit on the disk.

    A journal has one writer, so an incomplete last line was left by a writer that died and is removed.
    """
    line = (dumps(value) + "\n").encode()
    with needs_room(path), appending(path) as stream:
        end = _end_of_lines(stream)
        try:
            written = stream.write(line)
            while written < len(line):  # a full disk may first write a part
                written += stream.write(line[written:])
        except OSError:
            stream.truncate(end)
            raise


def _end_of_lines(stream: FileIO) -> int:
    """The size of a journal after removing an incomplete last line."""
    size = stream.seek(0, os.SEEK_END)
    if size:
        stream.seek(size - 1)
        if stream.read(1) != b"\n":
            stream.seek(0)
            size = stream.truncate(stream.readall().rfind(b"\n") + 1)
    return size


class Journal:
    """Reads the whole lines that were added since the last call; a line still being written waits for the next.

    A line that is not an event is skipped: journals serve displays and timings; verdicts rest on records and results.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def new_events(self) -> Iterator[Event]:
        for values in self.new_lines():
            if event := from_line(values):
                yield event

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The JSON objects among the new lines."""
        try:
            stream = opened(self.path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, NotRegularError):
            return
        with stream:
            stream.seek(self.offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                if (values := _object(line)) is not None:
                    yield values


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = loads(line.decode("utf-8"))
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_events(path: Path) -> list[Event]:
    """All events of a journal; none if there is no such file."""
    return list(Journal(path).new_events())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All JSON objects in a file of JSON lines; none if there is no such file."""
    return list(Journal(path).new_lines())
