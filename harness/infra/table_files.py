"""Writes rows as CSV, JSON or Parquet. Only this file imports pyarrow."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from harness.core.errors import InputError, Problem
from harness.core.serialization import dumps
from harness.core.text import csv_cell
from harness.infra import screen
from harness.infra.output_file import written

FORMATS = ("csv", "json", "parquet")
Row = Mapping[str, Any]  # column -> text, number or None; every row has the same columns


def write_table(rows: Iterable[Row], form: str, path: Path | None) -> int:
    """Write rows in one of FORMATS to a file, or to standard output when None; returns their number.

    InputError for Parquet without a file or without pyarrow, and see `written`. On the standard output of a CI job, no
    line of the table is a command of the CI system.
    """
    if form == "parquet":
        return _parquet(rows, path)
    if path is None:
        in_ci = screen.in_ci(os.environ)
        return (
            _csv(rows, screen.guarded(sys.stdout), lines=not in_ci) if form == "csv" else _json(rows, screen.json_data)
        )
    with written(path) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as stream:
        return _csv(rows, stream) if form == "csv" else _json(rows, stream.write)


def _csv(rows: Iterable[Row], stream: TextIO, *, lines: bool = True) -> int:
    """`lines`: whether a line feed in a text is written as it is, not as \\n."""
    writer, count = csv.writer(stream, lineterminator="\n"), 0
    for count, row in enumerate(rows, 1):
        if count == 1:
            writer.writerow(row)
        cells = map(csv_cell, row.values())
        writer.writerow(cells if lines else [_on_one_line(cell) for cell in cells])
    return count


def _on_one_line(cell: object) -> object:
    return cell.replace("\n", "\\n") if isinstance(cell, str) else cell


def _json(rows: Iterable[Row], write: Callable[[str], object]) -> int:
    """A list with an object per line."""
    count = 0
    for count, row in enumerate(rows, 1):
        write(("[\n" if count == 1 else ",\n") + dumps(row))
    write("\n]\n" if count else "[]\n")
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
    with written(path) as stream:
        pyarrow.parquet.write_table(table, stream)
    return int(table.num_rows)
