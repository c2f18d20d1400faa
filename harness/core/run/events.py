"""The events that agents and launchers record during a run, one class per kind, and the journals that hold them.

A journal is a file of JSON lines that one process appends to while others read it. The agent of each node has its own;
the launcher copies that of node 0 into the run's events.jsonl. Only the standard library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

from harness.core.run.run_dir import NotRegularError, appending, needs_room, opened
from harness.core.run.run_plan import Allocation
from harness.core.serialization import dumps, from_jsonable, loads, to_jsonable


class EventKind(str, Enum):
    """The value of `event` in a line."""

    STARTED = "started"
    LOADED = "loaded"
    GATHERED = "gathered"
    CELL_STARTED = "cell_started"
    CELL_FINISHED = "cell_finished"
    FAILED = "failed"
    FINISHED = "finished"
    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    NOT_SUBMITTED = "not_submitted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    RETRY = "retry"
    JOB_ENDED = "job_ended"
    STOPPED = "stopped"
    LAUNCHED = "launched"


@dataclass(frozen=True, kw_only=True)
class Event:
    kind: ClassVar[EventKind]
    time: float = 0.0  # seconds since the epoch


# Of agents


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The agent's process has started."""

    kind = EventKind.STARTED
    pid: int


@dataclass(frozen=True, kw_only=True)
class Loaded(Event):
    """torch and Megatron are imported."""

    kind = EventKind.LOADED
    import_s: float


@dataclass(frozen=True, kw_only=True)
class Gathered(Event):
    """The leader has seen the agents of all other nodes; they follow it from now on."""

    kind = EventKind.GATHERED
    tokens: dict[str, str]  # node -> token in its agent's heartbeat


@dataclass(frozen=True, kw_only=True)
class CellStarted(Event):
    """The supervisor of a cell is about to be forked. A leader's event makes the other nodes start the cell too."""

    kind = EventKind.CELL_STARTED
    cell: str
    attempt: int
    ranks: int  # a leader's: all ranks of the cell; a follower's: those of its node
    threads: list[str] = field(default_factory=list)  # of the agent at the fork, except the main thread


@dataclass(frozen=True, kw_only=True)
class CellFinished(Event):
    kind = EventKind.CELL_FINISHED
    cell: str
    attempt: int
    status: str | None = None  # that of the CellResult; set by a leader
    exit_code: int | None = None  # of the supervisor; set by a follower


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The agent ends with an exception."""

    kind = EventKind.FAILED
    reason: str
    traceback: str
    nodes: tuple[str, ...] = ()  # hosts that made it fail, by being lost or by a broken GPU: work may run elsewhere
    announced: bool = False  # a signal announced the end of the job: the cells left may run in another one


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The agent ends; every cell of its work order has a result."""

    kind = EventKind.FINISHED


# Of launchers


@dataclass(frozen=True, kw_only=True)
class Submitting(Event):
    """sbatch is about to be called: recorded in case the launcher is killed before it knows the job id."""

    kind = EventKind.SUBMITTING
    job: str  # the submission: submissions/<job>.sbatch
    name: str = ""  # Slurm's name of the job


@dataclass(frozen=True, kw_only=True)
class Submitted(Event):
    kind = EventKind.SUBMITTED
    job: str
    allocations: dict[str, str]  # allocation -> Slurm's job id


@dataclass(frozen=True, kw_only=True)
class NotSubmitted(Event):
    """sbatch refused the job file."""

    kind = EventKind.NOT_SUBMITTED
    job: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Duplicate(Event):
    """A second job of a submission, which was cancelled."""

    kind = EventKind.DUPLICATE
    name: str  # Slurm's name of both
    job: str  # id of the cancelled one
    kept: str | None  # id of the other one, if known


@dataclass(frozen=True, kw_only=True)
class Refused(Event):
    """An allocation that got no job: its cells are ERROR, and `resume` does not resubmit it."""

    kind = EventKind.REFUSED
    allocation: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Retry(Event):
    """An allocation that was added to run cells again."""

    kind = EventKind.RETRY
    why: str
    allocation: Allocation
    exclude: tuple[str, ...] = ()  # nodes on which an attempt of its cells failed


@dataclass(frozen=True, kw_only=True)
class JobEnded(Event):
    """The job of an allocation has ended; its cells without a result have been given one."""

    kind = EventKind.JOB_ENDED
    allocation: str
    array: str
    job: str  # Slurm's job id, "12" or "12_3"
    state: str  # as Slurm names it; empty if Slurm was not asked or does not know it
    words: str = ""  # the state as a sentence


@dataclass(frozen=True, kw_only=True)
class RunStopped(Event):
    """A launcher has ended the run before all of its cells had ended, as the user asked."""

    kind = EventKind.STOPPED
    why: str
    cells: tuple[str, ...]  # without a result


@dataclass(frozen=True, kw_only=True)
class Launched(Event):
    """A launcher has followed the run to its end, or was ended."""

    kind = EventKind.LAUNCHED
    timing: dict[str, float]  # launch_s: from start to end; import_s: the longest import of an agent


_CLASSES: dict[str, type[Event]] = {one.kind.value: one for one in Event.__subclasses__()}


def to_line(event: Event) -> dict[str, Any]:
    """Return the JSON form of an event. Fields that are None by default are left out when they are None."""
    values = {
        item.name: getattr(event, item.name)
        for item in fields(event)
        if not (item.default is None and getattr(event, item.name) is None)
    }
    return {"time": values.pop("time"), "event": event.kind.value, **to_jsonable(values)}


def from_line(values: Mapping[str, Any]) -> Event | None:
    """Return the event of a JSON object; None for an unknown kind, and if a field is unknown, missing or of another
    type.
    """
    kind = values.get("event")
    known = _CLASSES.get(kind) if isinstance(kind, str) else None
    if known is None:
        return None
    try:
        return from_jsonable(known, {name: value for name, value in values.items() if name != "event"})
    except (TypeError, ValueError):
        return None


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
    """Return the size of a journal after removing an incomplete last line."""
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
        """Yield the JSON objects among the new lines."""
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
    """Return all events of a journal; none if there is no such file."""
    return list(Journal(path).new_events())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all JSON objects in a file of JSON lines; none if there is no such file."""
    return list(Journal(path).new_lines())
