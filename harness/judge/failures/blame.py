"""Decides who is to blame for an exception: first by the kind of error, then by the innermost frame with an owner.

1. An error of the operating system, storage, network or a device is infrastructure wherever it is raised; gloo's
   refusal of a tensor on a GPU is the harness's, which chose gloo.
2. An error that only follows from the end of another rank proves nothing about this rank.
3. An asynchronous kernel error, NaN or Inf is the code's: it may be raised in any frame.
4. A name that the harness looks up and the stack lacks is unknown: it may have been renamed. So is a failed import: the
   environment may lack the module. So is memory that the machine lacks, or a process
   that something killed: others share the machine. So is a configuration that upstream's parser or validation refuses
   during set-up, since the harness or `args` chose it.
5. Otherwise the innermost frame of the code under test or the harness decides. torch and the standard library own
   no frame: they raise because of their callers.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.core.run.records import Failure, Progress
from harness.core.upstream import CODE, HARNESS, KERNEL, deciding
from harness.judge.failures import patterns as table
from harness.judge.failures.pattern_row import Domain, Pattern, Role

_FULL = frozenset({"ENOSPC", "EDQUOT"})
# Errors of storage and hosts, for any I/O. ENOENT and the like may be a wrong path of the code under test.
_STORAGE = ("ESTALE", "EIO", "EROFS", "EACCES", "EPERM", "ENOLCK", "EREMOTEIO", "ENOTCONN", "ENXIO", "EUCLEAN")
_OPEN_FILES = ("EMFILE", "ENFILE")
_HOST = ("EBUSY", "ESHUTDOWN", "EHOSTDOWN")
_NETWORK = ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "ENETDOWN", "EADDRNOTAVAIL", "EADDRINUSE", "ETIMEDOUT")
_ASYNCHRONOUS = (table.GPU_MEMORY_ACCESS, table.NON_FINITE)
# Only wrong code raises these. Other exceptions during set-up come from hosts and libraries, which have no frames.
_PROGRAM_ERRORS = ("TypeError", "AttributeError", "NameError", "KeyError", "IndexError", "AssertionError")
_IMPORTS = ("ImportError", "ModuleNotFoundError")
_NO_MEMORY = (table.GPU_MEMORY, table.HOST_MEMORY)
_OF_THE_MACHINE = (table.HOST_MEMORY, table.KILLED)
_ALLOCATOR = "DefaultCPUAllocator"  # torch's own: it refuses one request, which it states, for its size


class Blame(NamedTuple):
    pattern: Pattern  # the class of the failure
    domain: Domain
    frame: str = ""  # the frame that decided; empty if the kind of error did


def blame_of(failure: Failure, progress: Progress) -> Blame:
    """The class of an exception and who is to blame. `progress`: where the rank was when it raised."""
    owner, frame = deciding(failure.frames)
    pattern = _of_the_system(failure, owner) or pattern_of_exception(failure.type, failure.message)
    if pattern is table.GLOO_DEVICE:
        return Blame(pattern, pattern.domain, frame)
    if pattern.domain == Domain.INFRASTRUCTURE or pattern in _ASYNCHRONOUS:
        return Blame(pattern, pattern.domain)
    if pattern.role == Role.CASCADE:
        row = table.UNREACHABLE if progress.leg == "start" else pattern
        return Blame(row, row.domain)
    if failure.absent:
        return Blame(table.ABSENT_NAME, Domain.UNKNOWN, frame)
    if failure.type in _IMPORTS:  # a gap in the environment proves nothing about what the code computes
        return Blame(table.IMPORT, Domain.UNKNOWN, frame)
    if pattern in _OF_THE_MACHINE and _ALLOCATOR not in failure.message:
        return Blame(pattern, Domain.UNKNOWN, frame)
    if failure.refused and progress.phase == "setup":
        return Blame(table.CONFIGURATION, Domain.UNKNOWN, frame)
    if owner == CODE:
        return Blame(pattern, Domain.CODE, frame)
    if owner in (HARNESS, KERNEL):
        return _of_the_harness(failure, progress, owner, frame, pattern)
    # Records of earlier releases have no frames, only the location of the failure.
    by_code = progress.leg != "start" and progress.phase != "setup"
    return Blame(pattern, Domain.CODE if by_code else Domain.UNKNOWN)


def _of_the_harness(failure: Failure, progress: Progress, owner: str, frame: str, pattern: Pattern) -> Blame:
    if pattern in _NO_MEMORY:  # it allocated within its share, but the machine had no memory left
        return Blame(pattern, Domain.UNKNOWN, frame)
    if owner == KERNEL:
        return Blame(table.REPLACEMENT, Domain.HARNESS, frame)
    if progress.leg == "start" and failure.type not in _PROGRAM_ERRORS:
        return Blame(table.SETUP, Domain.UNKNOWN, frame)
    return Blame(table.HARNESS_DEFECT, Domain.HARNESS, frame)


def _of_the_system(failure: Failure, owner: str) -> Pattern | None:
    """The row of an error with an errno; None for any other."""
    if failure.errno in _FULL:
        return table.DISK
    if failure.errno in _OPEN_FILES:
        return table.OPEN_FILES
    if failure.errno in (*_STORAGE, *_HOST):
        return table.STORAGE
    if failure.errno in _NETWORK:
        return table.UNREACHABLE if failure.errno == "ECONNREFUSED" else table.NETWORK
    # Any error of a file that the harness itself reads or writes, e.g. ENOENT of a run directory that was removed.
    own_file = failure.errno and owner == HARNESS and failure.errno not in ("ECONNRESET", "EPIPE", "ENOMEM")
    return table.STORAGE if own_file else None


def pattern_of_exception(type_name: str, message: str) -> Pattern:
    """The first row whose expression matches an exception; PYTHON if none does."""
    text = f"{type_name}: {message}"
    return next((pattern for pattern in table.PATTERNS if pattern.in_exception(text)), table.PYTHON)
