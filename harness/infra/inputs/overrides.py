"""`--set`: values of a matrix that the command line gives, e.g. train.steps=5 or matrix.tp=[1,2]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, Problem
from harness.infra.inputs import yaml_file
from harness.infra.inputs.matrix_file import read_matrix
from harness.plan.matrix.load import Matrix

_AXES = "matrix"


def read_overridden(path: Path, settings: Sequence[str]) -> Matrix:
    """The matrix in a file with the settings of `--set`, which a problem of their keys names instead of the file."""
    try:
        return read_matrix(path, overriding(settings))
    except InputError as error:
        keys = tuple(setting.partition("=")[0] for setting in settings)
        raise InputError([_of_option(problem, keys) for problem in error.problems]) from error


def _of_option(problem: Problem, keys: Sequence[str]) -> Problem:
    """`--set` in place of file and line if the problem is that of a key, or below one."""
    of_key = any(problem.key == key or (problem.key or "").startswith((f"{key}.", f"{key}[")) for key in keys)
    return replace(problem, file="--set", line=None) if of_key else problem


def overriding(settings: Sequence[str]) -> Callable[[Any], Any]:
    """A function that puts the settings into the values of a matrix file; InputError for one that is not like
    train.steps=5.

    KEY is a path with dots into the file; what follows `matrix.` is the name of one axis, which may have dots itself.
    VALUE is YAML. Whether the key exists and the value fits, the file's own checks say.
    """
    changes = [_parsed(setting) for setting in settings]

    def change(values: Any) -> Any:
        changed = deepcopy(values)
        for path, value in changes:
            _put(changed, path, value)
        return changed

    return change


def _parsed(setting: str) -> tuple[list[str], Any]:
    key, separator, text = setting.partition("=")
    first, _, rest = key.partition(".")
    path = [first, rest] if first == _AXES and rest else key.split(".")
    if not separator or not all(path):
        hint = "e.g. --set train.steps=5 or --set 'matrix.tp=[1, 2]'"
        message = "needs a key, an equals sign and a value"
        raise InputError(Problem(key="--set", message=message, found=repr(setting), hint=hint))
    return path, yaml_file.parsed(text, f"--set {key}").values


def _put(values: Any, path: Sequence[str], value: Any) -> None:
    """Where the path leads through something that is no mapping, that is replaced, as if the file were edited."""
    if not isinstance(values, dict):
        return  # the file itself is no mapping, which is reported
    for name in path[:-1]:
        if not isinstance(values.get(name), dict):
            values[name] = {}
        values = values[name]
    values[path[-1]] = value
