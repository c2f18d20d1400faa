"""Reads a matrix file, and the CSV of document lengths that it may name, into a Matrix; applies values of `--set`."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, Problem
from harness.core.packing.documents import MAX_LENGTH, MAX_LENGTHS
from harness.infra.files import MIB, expanded, read_text, require_matrix
from harness.infra.screen import environment_secrets
from harness.inputs import yaml_file
from harness.inputs.since import with_earlier_stacks
from harness.inputs.working_tree import working_tree
from harness.matrix.load import Matrix, load
from harness.matrix.problems import refuse_secrets, shown
from harness.matrix.stacks.recipes import TreeOf

_LENGTH = re.compile(r"[0-9]{1,20}")
_MAX_PROBLEMS = 20  # reported per file
_MAX_SHOWN = 30  # characters of a number
_AXES_SECTION = "matrix"


def read_matrix(
    path: Path, change: Callable[[Any], Any] = lambda values: values, tree_of: TreeOf = working_tree
) -> Matrix:
    """Return the matrix in a file; InputError with every problem, each with file, line and key.

    `change`: applied to the file's values before they are checked. `tree_of`: finds the checkout of `working-tree`.
    """
    require_matrix(path)
    source = yaml_file.read(path)
    refuse_secrets(source.values, environment_secrets(), file=source.file, lines=source.lines)
    return load(
        change(source.values),
        file=source.file,
        path_of=lambda name: os.path.abspath(path.parent / expanded(name)),  # noqa: PTH100 - keeps symbolic links
        lines=source.lines,
        tree_of=tree_of,
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
            problems.append(_length_problem(path, line, f"{len(cells)} columns", "one column of lengths"))
        elif not _LENGTH.fullmatch(cells[0]) or not 1 <= int(cells[0]) <= MAX_LENGTH:
            # Only a number is shown: a matrix may name any file of the reader.
            found = shown(cells[0]) if len(cells[0]) <= _MAX_SHOWN and _is_number(cells[0]) else "a text"
            problems.append(_length_problem(path, line, found, f"an integer from 1 to {MAX_LENGTH}"))
        else:
            lengths.append(int(cells[0]))
        if len(problems) == _MAX_PROBLEMS:
            break
    if not lengths and not problems:
        problems.append(Problem(message="contains no document length", file=str(path)))
    if len(lengths) > MAX_LENGTHS:
        found, hint = f"{len(lengths):,} lengths", "keep as many as steps x global_batch take"
        allowed = f"at most {MAX_LENGTHS:,}"
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


def _length_problem(path: Path, line: int, found: str, allowed: str) -> Problem:
    return Problem(message="not a document length", file=str(path), line=line, found=found, allowed=allowed)


def read_overridden(path: Path, settings: Sequence[str], since: str | None = None) -> Matrix:
    """Return the matrix in a file with the settings of `--set`, which a problem of their keys names instead of the
    file. `since`: the commit of `--since`, at which the working tree is tested as well.
    """
    override = overriding(settings)
    double = with_earlier_stacks(since) if since is not None else None
    try:
        return read_matrix(path, lambda values: double(override(values)) if double else override(values))
    except InputError as error:
        keys = tuple(setting.partition("=")[0] for setting in settings)
        raise InputError([_of_option(problem, keys) for problem in error.problems]) from error


def _of_option(problem: Problem, keys: Sequence[str]) -> Problem:
    """`--set` in place of file and line if the problem is that of a key, or below one."""
    of_key = any(problem.key == key or (problem.key or "").startswith((f"{key}.", f"{key}[")) for key in keys)
    return replace(problem, file="--set", line=None) if of_key else problem


def overriding(settings: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function that puts the settings into the values of a matrix file; InputError for one that is not like
    train.steps=5.

    KEY is a path with dots into the file; what follows `matrix.` is the name of one axis, which may have dots itself.
    VALUE is YAML. Whether the key exists and the value fits, the file's own checks say.
    """
    changes = [_parsed_setting(setting) for setting in settings]

    def change(values: Any) -> Any:
        changed = deepcopy(values)
        for path, value in changes:
            _put_value(changed, path, value)
        return changed

    return change


def _parsed_setting(setting: str) -> tuple[list[str], Any]:
    key, separator, text = setting.partition("=")
    first, _, rest = key.partition(".")
    path = [first, rest] if first == _AXES_SECTION and rest else key.split(".")
    if not separator or not all(path):
        hint = "e.g. --set train.steps=5 or --set 'matrix.tp=[1, 2]'"
        message = "needs a key, an equals sign and a value"
        raise InputError(Problem(key="--set", message=message, found=repr(setting), hint=hint))
    return path, yaml_file.parsed(text, f"--set {key}").values


def _put_value(values: Any, path: Sequence[str], value: Any) -> None:
    """Where the path leads through something that is no mapping, that is replaced, as if the file were edited."""
    if not isinstance(values, dict):
        return  # the file itself is no mapping, which is reported
    for name in path[:-1]:
        if not isinstance(values.get(name), dict):
            values[name] = {}
        values = values[name]
    values[path[-1]] = value
