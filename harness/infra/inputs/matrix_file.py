"""Reads a matrix file, and the CSV of document lengths that it may name, into a Matrix."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, Problem
from harness.core.packing.documents import MOST_LENGTH, MOST_LENGTHS
from harness.infra.inputs import yaml_file
from harness.infra.inputs.shipped import require_matrix
from harness.infra.inputs.text_file import MIB, expanded, read_text
from harness.infra.inputs.working_tree import working_tree
from harness.infra.screen import environment_secrets
from harness.plan.matrix.load import Matrix, load
from harness.plan.matrix.problems import refuse_secrets, shown

_LENGTH = re.compile(r"[0-9]{1,20}")
_MOST_PROBLEMS = 20  # reported per file
_MOST_SHOWN = 30  # characters of a number


def read_matrix(path: Path, change: Callable[[Any], Any] = lambda values: values) -> Matrix:
    """The matrix in a file; InputError with every problem, each with file, line and key.

    `change`: applied to the file's values before they are checked.
    """
    require_matrix(path)
    source = yaml_file.read(path)
    refuse_secrets(source.values, environment_secrets(), file=source.file, lines=source.lines)
    return load(
        change(source.values),
        file=source.file,
        path_of=lambda name: os.path.abspath(path.parent / expanded(name)),  # noqa: PTH100 - keeps symbolic links
        lines=source.lines,
        tree_of=working_tree,
        read_lengths=lambda name: read_lengths(path.parent / name),
    )


def read_lengths(path: Path) -> tuple[int, ...]:
    """Document lengths in tokens from a CSV file of one column, header allowed; InputError names file and line."""
    lengths: list[int] = []
    problems: list[Problem] = []
    try:
        rows = list(csv.reader(io.StringIO(read_text(path, MIB))))
    except csv.Error as error:
        raise InputError(Problem(message=f"not a CSV file: {error}", file=str(path))) from error
    for line, row in enumerate(rows, start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (line == 1 and len(cells) == 1 and not _is_number(cells[0])):
            continue
        if len(cells) != 1:
            problems.append(_problem(path, line, f"{len(cells)} columns", "one column of lengths"))
        elif not _LENGTH.fullmatch(cells[0]) or not 1 <= int(cells[0]) <= MOST_LENGTH:
            # Only a number is shown: a matrix may name any file of the reader.
            found = shown(cells[0]) if len(cells[0]) <= _MOST_SHOWN and _is_number(cells[0]) else "a text"
            problems.append(_problem(path, line, found, f"an integer from 1 to {MOST_LENGTH}"))
        else:
            lengths.append(int(cells[0]))
        if len(problems) == _MOST_PROBLEMS:
            break
    if not lengths and not problems:
        problems.append(Problem(message="contains no document length", file=str(path)))
    if len(lengths) > MOST_LENGTHS:
        found, hint = f"{len(lengths):,} lengths", "keep as many as steps x global_batch take"
        allowed = f"at most {MOST_LENGTHS:,}"
        problems.append(Problem(message="too many", file=str(path), found=found, allowed=allowed, hint=hint))
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
