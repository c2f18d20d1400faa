"""From a path to a Matrix: reads the YAML file, and the CSV of document lengths it may name."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.edge import yaml_file
from harness.plan.matrix import Matrix, load
from harness.words.errors import InputError, Problem


def read_matrix(path: Path, change: Callable[[Any], Any] = lambda values: values) -> Matrix:
    """The matrix in a file; InputError with every problem, each with file, line and key.

    `change`: what to make of the file's values before they are checked.
    """
    source = yaml_file.read(path)
    return load(
        change(source.values),
        file=source.file,
        path_of=lambda name: os.path.abspath(path.parent / Path(name).expanduser()),  # noqa: PTH100 - keeps links
        lines=source.lines,
        read_lengths=lambda name: read_lengths(path.parent / name),
    )


def read_lengths(path: Path) -> tuple[int, ...]:
    """Document lengths in tokens from a CSV file of one column, header allowed; InputError names file and line."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.reader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Problem(message=f"cannot be read: {reason}", file=str(path))) from error
    lengths: list[int] = []
    problems: list[Problem] = []
    for line, row in enumerate(rows, start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (line == 1 and len(cells) == 1 and not _is_number(cells[0])):
            continue
        if len(cells) != 1:
            problems.append(_problem(path, line, f"{len(cells)} columns", "one column of lengths"))
        elif not cells[0].isascii() or not cells[0].isdigit() or int(cells[0]) < 1:
            problems.append(_problem(path, line, repr(cells[0]), "an integer of at least 1"))
        else:
            lengths.append(int(cells[0]))
    if not lengths and not problems:
        problems.append(Problem(message="holds no document length", file=str(path)))
    if problems:
        raise InputError(problems)
    return tuple(lengths)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _problem(path: Path, line: int, found: str, allowed: str) -> Problem:
    return Problem(message="not a document length", file=str(path), line=line, found=found, allowed=allowed)
