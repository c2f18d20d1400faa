"""Writes rows as CSV, JSON or Parquet. Only this file imports pyarrow."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from harness.core.errors import InputError, Problem
from harness.core.serialization import dumps
from harness.core.text.escaping import csv_cell

FORMATS = ("csv", "json", "parquet")
Row = Mapping[str, Any]  # column -> text, number or None; every row has the same columns


def write_table(rows: Iterable[Row], form: str, path: Path | None) -> int:
    """Write rows in one of FORMATS to a file, or to standard output when None; returns their number.

    InputError for Parquet without a file or without pyarrow. The file is written atomically.
    """
    if form == "parquet":
        return _parquet(rows, path)
    with _text(path) as stream:
        return _csv(rows, stream) if form == "csv" else _json(rows, stream)


@contextmanager
def _text(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with _renamed(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        yield stream


@contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.tmp")
    from harness.core.run.run_dir import needs_room  # not for --help, which loads this module

    with needs_room(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _csv(rows: Iterable[Row], stream: TextIO) -> int:
    writer, count = csv.writer(stream, lineterminator="\n"), 0
    for count, row in enumerate(rows, 1):
        if count == 1:
            writer.writerow(row)
        writer.writerow(map(csv_cell, row.values()))
    return count


def _json(rows: Iterable[Row], stream: TextIO) -> int:
    """A list with an object per line."""
    count = 0
    for count, row in enumerate(rows, 1):
        stream.write(("[\n" if count == 1 else ",\n") + dumps(row))
    stream.write("\n]\n" if count else "[]\n")
    return count


def _parquet(rows: Iterable[Row], path: Path | None) -> int:
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
    with _renamed(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)
    return int(table.num_rows)
