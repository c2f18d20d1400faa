"""Writes the files that options such as --output name; rows as CSV, JSON or Parquet. Only this file imports pyarrow."""

from __future__ import annotations

import csv
import io
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.serialization import dumps
from harness.core.text import csv_cell
from harness.infra import screen

FORMATS = ("csv", "json", "parquet")
Row = Mapping[str, Any]  # column -> text, number or None; every row has the same columns


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Open a stream into what the user named.

    A file is replaced once its new content is complete, a pipe or a character device is written to. A symbolic link
    stays and leads to the new content.

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
    """Return the stream, its temporary file (None where nothing is replaced), and what that file replaces."""
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
    """Return the type of what a path leads to; None if there is nothing."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _is_open_ended(path: Path, mode: int) -> bool:
    """Return whether a path is written to as it is: a pipe, a character device, or this process's /dev/stdout."""
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    return stat.S_ISREG(mode) and path.is_absolute() and path.parts[1] in ("dev", "proc")


def write_table(rows: Iterable[Row], form: str, path: Path | None) -> int:
    """Write rows in one of FORMATS to a file, or to standard output when None; return their number.

    InputError for Parquet without a file or without pyarrow, and see `written`. On the standard output of a CI job, no
    line of the table is a command of the CI system.
    """
    if form == "parquet":
        return _write_parquet(rows, path)
    if path is None:
        in_ci = screen.in_ci(os.environ)
        return (
            _write_csv(rows, screen.guarded(sys.stdout), lines=not in_ci)
            if form == "csv"
            else _write_json(rows, screen.json_data)
        )
    with written(path) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as stream:
        return _write_csv(rows, stream) if form == "csv" else _write_json(rows, stream.write)


def _write_csv(rows: Iterable[Row], stream: TextIO, *, lines: bool = True) -> int:
    """Write rows as CSV. `lines`: whether a line feed in a text is written as it is, not as \\n."""
    writer, count = csv.writer(stream, lineterminator="\n"), 0
    for count, row in enumerate(rows, 1):
        if count == 1:
            writer.writerow(row)
        cells = map(csv_cell, row.values())
        writer.writerow(cells if lines else [_on_one_line(cell) for cell in cells])
    return count


def _on_one_line(cell: object) -> object:
    return cell.replace("\n", "\\n") if isinstance(cell, str) else cell


def _write_json(rows: Iterable[Row], write: Callable[[str], object]) -> int:
    """Write a list with an object per line."""
    count = 0
    for count, row in enumerate(rows, 1):
        write(("[\n" if count == 1 else ",\n") + dumps(row))
    write("\n]\n" if count else "[]\n")
    return count


def _write_parquet(rows: Iterable[Row], path: Path | None) -> int:
    if path is None:
        raise InputError(
            Problem(
                key="--format",
                message="Parquet cannot be written to standard output",
                hint="name a file with --output FILE",
            )
        )
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        hint = "install pyarrow in the harness's environment, or use csv or json"
        raise InputError(Problem(key="--format", message="Parquet needs the package pyarrow", hint=hint)) from error
    ahead = iter(rows)
    first = next(ahead, None)
    table = pyarrow.Table.from_pylist([] if first is None else list(chain([dict(first)], map(dict, ahead))))
    with written(path) as stream:
        pyarrow.parquet.write_table(table, stream)
    return int(table.num_rows)
