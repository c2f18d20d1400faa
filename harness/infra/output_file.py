"""Writes the files that options such as --output name."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.core.errors import InfrastructureError, InputError, Problem


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A stream into what the user named: a file is replaced once its new content is complete, a pipe or a character
    device is written to. A symbolic link stays and leads to the new content.

    InputError for what cannot be written to, such as a folder; DiskFullError when there is no room.
    """
    from harness.core.run.run_dir import needs_room  # not for --help, which loads this module

    stream, temporary, target = _opened(path)
    try:
        with needs_room(path), stream:
            yield stream
        if temporary:
            temporary.replace(target)
    except OSError as error:
        raise InfrastructureError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


def _opened(path: Path) -> tuple[BinaryIO, Path | None, Path]:
    """The stream; the temporary file that it writes, None where nothing is replaced; and what that file replaces."""
    try:
        mode = _mode(path)
        if mode is not None and _is_open_ended(path, mode):
            return path.open("ab"), None, path
        if mode is not None and not stat.S_ISREG(mode):
            what = "is a folder" if stat.S_ISDIR(mode) else "is not a file"
            raise InputError(Problem(key="--output", message=what, found=repr(str(path)), allowed="a file to write"))
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        return temporary.open("xb"), temporary, target
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        problem = Problem(key="--output", message=f"cannot be written: {reason}", found=repr(str(path)))
        raise InputError(problem) from error


def _mode(path: Path) -> int | None:
    """The type of what a path leads to; None if there is nothing."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _is_open_ended(path: Path, mode: int) -> bool:
    """Whether a path is written to as it is: a pipe, a character device, or a stream of this process (/dev/stdout)."""
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    return stat.S_ISREG(mode) and path.is_absolute() and path.parts[1] in ("dev", "proc")
