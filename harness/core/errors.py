"""The exception tree, and the problems reported for an input.

HarnessError
|-- InputError           bad matrix, arguments or run directory: exit code 2
|-- InfrastructureError  inconclusive, the code under test is not to blame: exit code 3
|   |-- DiskFullError           no space in the run directory
|   |-- DriverError             the GPUs of a node, or their driver, do not work
|   |-- NotBuildableError       this machine cannot compile what a stack needs: its cells are ERROR
|   `-- NotRevertibleError      a commit that a stack reverts cannot be reverted: its cells are ERROR
|-- InternalError          a defect of the harness: exit code 3, with the traceback in a file
`-- InterruptedRun         the user pressed Ctrl-C: exit code 130

A failed check is never an exception: it is a `Finding` (outcomes.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.outcomes import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_UNDECIDED


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with the user's input, with what the user needs to fix it."""

    message: str
    file: str | None = None
    line: int | None = None
    key: str | None = None  # dotted key path, e.g. "matrix.tp[1]"
    found: str | None = None
    allowed: str | None = None
    hint: str | None = None  # what to do, e.g. "did you mean 'packing'?"

    def __str__(self) -> str:
        location = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = f"{self.key}: {self.message}" if self.key else self.message
        details = [f"found {self.found}" if self.found is not None else None]
        details += [f"allowed: {self.allowed}" if self.allowed else None, self.hint]
        tail = "; ".join(part for part in details if part)
        return f"{location + ': ' if location else ''}{text}{' (' + tail + ')' if tail else ''}"


class HarnessError(Exception):
    """Base of every error the command line turns into a message and an exit code."""

    exit_code = EXIT_UNDECIDED


class InputError(HarnessError):
    """The user's input is wrong; `problems` holds every problem found, not only the first."""

    exit_code = EXIT_INPUT

    def __init__(self, problems: Iterable[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            problems = Problem(message=problems)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InfrastructureError(HarnessError):
    """Something other than the code under test broke, so nothing can be concluded about that code."""


class DiskFullError(InfrastructureError):
    """The run directory's disk, or the user's quota on it, has no space; files that were complete stay complete."""

    process_exit_code = 28  # ENOSPC; of ranks and agents, so that their parent learns the cause without a file


STORAGE_EXIT = 74  # EX_IOERR of sysexits.h: a rank could not write its own files, though the disk was not full
STORAGE_EXITS = (DiskFullError.process_exit_code, STORAGE_EXIT)


class DriverError(InfrastructureError):
    """The GPUs of this node, or their driver, do not work; another node may do."""


class NotBuildableError(InfrastructureError):
    """What a stack needs cannot be compiled on this machine; this says nothing about the code under test."""


class NotRevertibleError(InfrastructureError):
    """A commit that a stack reverts conflicts with later ones, or its revert changes nothing."""


class InternalError(HarnessError):
    """The harness itself failed; the message names the file that holds the traceback."""


class InterruptedRun(HarnessError):  # noqa: N818 - not an error, but it ends the run
    """The user interrupted the run; results of finished cells are kept."""

    exit_code = EXIT_INTERRUPTED
