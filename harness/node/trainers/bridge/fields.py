"""Fields of Megatron-Bridge's ConfigContainer that a cell sets by their dotted names, e.g. "ddp.overlap_grad_reduce".

Upstream's own overrides (training.utils.omegaconf_utils) need the package hydra-core, and skip unknown names.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from harness.core.cell.arguments import Argument, Arguments

_CONSTANTS = {"true": True, "false": False, "null": None}
_INTEGER = re.compile(r"[+-]?\d+")
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class FieldError(ValueError):
    """A name that no field has, or a value that a field cannot have."""


def set_fields(container: Any, args: Arguments) -> None:
    """Set the fields among the arguments. FieldError for one that the container does not have."""
    for argument in args.given:
        if argument.is_field:
            _set(container, argument)


def _set(container: Any, argument: Argument) -> None:
    *path, name = argument.name.split(".")
    owner = container
    for part in path:
        owner = getattr(owner, part, None)
    if not _is_configuration(owner) or name not in _names_of(owner):
        known = list(_names(container, ""))
        near = difflib.get_close_matches(argument.name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise FieldError(f"{argument.name} is not a field of this release's ConfigContainer{hint}")
    setattr(owner, name, _value(argument, getattr(owner, name)))


def _names(owner: Any, prefix: str) -> Iterator[str]:
    """Dotted names of all fields."""
    for name in _names_of(owner):
        value = getattr(owner, name, None)
        yield from _names(value, f"{prefix}{name}.") if _is_configuration(value) else (f"{prefix}{name}",)


def _names_of(owner: Any) -> list[str]:
    return [one.name for one in dataclasses.fields(owner) if not one.name.startswith("_")]


def _is_configuration(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _value(argument: Argument, before: Any) -> Any:
    """The value, of the type of the field's default, unless that is None. FieldError if it is of another type."""
    words = argument.words
    found = _read(words[0]) if len(words) == 1 else [_read(word) for word in words]
    if found is None or before is None:
        return found
    if isinstance(before, Enum):
        if words[0] in type(before).__members__:
            return type(before)[words[0]]
        raise FieldError(f"{argument.flag[0]}: allowed: {', '.join(type(before).__members__)}")
    if isinstance(before, str) and len(words) == 1:
        return words[0]
    if isinstance(before, (list, tuple)):
        return type(before)(found if isinstance(found, list) else [found])
    if isinstance(before, float) and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    if type(found) is not type(before):
        raise FieldError(f"{argument.flag[0]}: must be of type {type(before).__name__}, like its default {before!r}")
    return found


def _read(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _INTEGER.fullmatch(word):
        return int(word)
    return float(word) if _REAL.fullmatch(word) else word
