"""Files named by the user, or by a file of the user, read up to a size limit; and the files that come with the harness.

Those are matrices, cluster profiles, job templates and pages of the documentation.
"""

from __future__ import annotations

import difflib
import os
import stat
from pathlib import Path

import harness
from harness.core.errors import InputError, Problem

MIB = 2**20
_PACKAGE = Path(harness.__file__).resolve().parent
_INSTALLED = _PACKAGE / "shipped"


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a regular file in UTF-8; InputError for anything else, and for a file above `most_bytes`.

    A pipe or a device could block or never end, so neither is opened for reading.
    """
    try:
        content = _content(path, most_bytes)
    except FileNotFoundError:
        raise InputError(Problem(message="no such file", file=str(path))) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Problem(message=f"cannot be read: {reason}", file=str(path))) from error
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise InputError(Problem(message="not a text file: it contains a NUL character", file=str(path), line=line))
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = Problem(message=f"not a UTF-8 text file: {error.reason}", file=str(path), line=line)
        raise InputError(problem) from error


def expanded(name: str) -> Path:
    """Return a path with `~` and `~user` expanded; InputError if there is no such user."""
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError) as error:
        hint = "write the path in full, or ./~name for a folder of this name"
        raise InputError(Problem(message="no such home folder", found=repr(name), hint=hint)) from error


def is_file(path: Path) -> bool:
    """Return whether there is a regular file; False for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for a name that is too long


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; False for a name that no folder can have."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for a name that is too long


def exists(path: Path) -> bool:
    """Return whether there is anything of this name; False for a name that nothing can have."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a name that is too long


def _content(path: Path, most_bytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(Problem(message="cannot be read: not a regular file", file=str(path)))
        content = stream.read(most_bytes + 1)  # not st_size: it is 0 in /proc, and a file can grow
    if len(content) > most_bytes:
        raise InputError(Problem(message="the file is too large", file=str(path), allowed=f"{most_bytes:,} bytes"))
    return content


def checkout() -> Path | None:
    """Return the checkout that the harness runs from; None where a wheel is installed."""
    return None if _INSTALLED.is_dir() else _PACKAGE.parent


def shipped(name: str) -> Path:
    """Return the folder `matrices` or `sbatch_templates`: of the checkout, or within the package where a wheel is
    installed.

    pyproject.toml puts the checkout's folders into the wheel, so there is one copy of each file.
    """
    return (checkout() or _INSTALLED) / name


def matrix_path(name: str) -> Path:
    """Return a matrix file by its path or, where there is no such file, a shipped one by its name."""
    path = Path(name)
    found = shipped("matrices") / (name if name.endswith(".yaml") else f"{name}.yaml")
    return found if "/" not in name and not exists(path) and is_file(found) else path


def matrix_word(path: Path) -> str:
    """Return what `matrix_path` reads as this file: a shipped one by its name, since it lies elsewhere on other
    machines.
    """
    return path.stem if path.parent == shipped("matrices") else str(path)


def require_matrix(path: Path) -> None:
    """InputError, with the nearest name, when there is no such matrix file."""
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError):  # read_text says what is wrong
        return
    else:
        return
    beside = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    names = {file.stem for file in shipped("matrices").glob("*.yaml")} if path.parent == Path() else set()
    near = difflib.get_close_matches(path.name, [*beside, *sorted(names)], n=1)
    hint = f"did you mean {near[0]}?" if near else None
    raise InputError(Problem(message="no such file", file=str(path), hint=hint))
