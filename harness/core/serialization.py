"""Dataclasses to JSON and back, with NaN and infinity kept.

Non-finite floats become {"$float": "nan" | "inf" | "-inf"}: valid JSON for every reader, and exact on the way back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
MAX_INT = 2**63 - 1  # of a whole number in a file: every computation with it stays within a float
# Metadata of a dataclass field that JSON has only if it is not empty.
WRITTEN_IF_ANY = {"written_if_any": True}
_PLAIN = frozenset((type(None), bool, int, str))


def to_jsonable(value: Any) -> Any:
    """Plain JSON values of a dataclass, enum, mapping, sequence or scalar. TypeError for anything else."""
    kind: Any = type(value)
    if kind in _PLAIN:  # most values: a rank writes thousands before each micro-batch
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (int, str)):
        return value
    if names := _field_names(kind):
        written = {name: to_jsonable(getattr(value, name)) for name in names}
        for name in _written_if_any(kind):
            if not written[name]:
                del written[name]
        return written
    if isinstance(value, Mapping):
        return {_key_text(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [to_jsonable(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}")


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields; empty for other classes."""
    return tuple(item.name for item in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


@cache
def _written_if_any(kind: Any) -> frozenset[str]:
    return frozenset(item.name for item in dataclasses.fields(kind) if "written_if_any" in item.metadata)


def _key_text(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)


def from_jsonable(kind: type[T], value: Any, *, whole: bool = False) -> T:
    """Return the dataclass `kind` from JSON values. TypeError with the field's place when the shape differs.

    `whole`: every field must be present, even one with a default. Evidence files are read this way: their writers
    write all fields, so a missing field was removed.
    """
    any_kind: Any = kind
    try:
        return _reader(any_kind, whole)(value)  # type: ignore[no-any-return]
    except ShapeError as error:
        raise TypeError(f"{kind.__name__}{error}") from None


def dumps(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(to_jsonable(value), indent=indent, allow_nan=False, ensure_ascii=False)


def loads(text: str) -> Any:
    """Return JSON text to plain values, with tagged non-finite floats restored. ValueError for anything else."""
    try:
        return json.loads(text, object_hook=_untag) if _TAG in text else json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    except TypeError as error:  # a tag without a number
        raise ValueError(f"not a number: {error}") from error


_TAG = '"$float"'


def _untag(mapping: dict[str, Any]) -> Any:
    return float(mapping["$float"]) if len(mapping) == 1 and "$float" in mapping else mapping


class ShapeError(TypeError):
    """A JSON value of another shape than its type, with the path to it, which every container around it extends."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem, self.path = problem, ""

    def within(self, part: str) -> None:
        """Extend the path by the part of a container in which the value is."""
        self.path = part + self.path

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


_Reader = Callable[[Any], Any]


@cache
def _reader(kind: Any, whole: bool) -> _Reader:
    """Return the function that reads a `kind` from a JSON value, or raises ShapeError. `whole`: as in `from_jsonable`.

    A run of a thousand cells has millions of values, so its speed decides how long a report takes.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        [some] = (_reader(part, whole) for part in parts if part is not type(None))
        return lambda value: None if value is None else some(value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_reader(kind, whole)
    if origin in (list, tuple):
        return _sequence_reader(origin, parts, whole)
    if origin is dict:
        return _mapping_reader(_number if parts[0] is int else _reader(parts[0], whole), _reader(parts[1], whole))
    if origin is Literal:
        return _choice_reader({value: value for value in parts})
    if issubclass(kind, Enum):
        return _choice_reader({item.value: item for item in kind})
    return {int: _int, float: _float}.get(kind) or _scalar_reader(kind)


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(_int(value))
    if isinstance(value, dict) and isinstance(tagged := _untag(value), float):
        return tagged
    raise ShapeError(f"expected float, found {value!r}")


def _int(value: Any) -> int:
    if type(value) is not int:
        raise ShapeError(f"expected int, found {value!r}")
    if not -MAX_INT <= value <= MAX_INT:
        raise ShapeError("a whole number of more than 64 bits")
    return value


def _scalar_reader(kind: type) -> _Reader:
    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        raise ShapeError(f"expected {kind.__name__}, found {value!r}")

    return read


def _choice_reader(choices: Mapping[Any, Any]) -> _Reader:
    """`choices`: JSON value -> what it stands for."""

    def read(value: Any) -> Any:
        try:
            return choices[value]
        except (KeyError, TypeError):  # a list or a mapping is no key
            raise ShapeError(f"expected one of {tuple(choices)}, found {value!r}") from None

    return read


def _sequence_reader(origin: type, parts: tuple[Any, ...], whole: bool) -> _Reader:
    items = [_reader(part, whole) for part in parts if part is not ...]
    fixed = origin is tuple and ... not in parts

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise ShapeError(f"expected a list, found {value!r}")
        if fixed and len(items) != len(value):
            raise ShapeError(f"expected {len(items)} items, found {len(value)}")
        made: list[Any] = []
        try:
            # Where a value has another shape, `extend` keeps those before it.
            made.extend((item(one) for item, one in zip(items, value)) if fixed else map(items[0], value))
        except ShapeError as error:
            error.within(f"[{len(made)}]")
            raise
        return made if origin is list else origin(made)

    return read


def _mapping_reader(key: _Reader, item: _Reader) -> _Reader:
    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise ShapeError(f"expected a mapping, found {value!r}")
        made, name = {}, ""
        try:
            for name, one in value.items():
                made[key(name)] = item(one)
        except ShapeError as error:
            error.within(f"[{name}]")
            raise
        return made

    return read


def _number(key: str) -> int:
    """Return a whole number that is a key, which JSON has as text."""
    try:
        return int(key)
    except ValueError:
        raise ShapeError(f"expected int, found {key!r}") from None


def _dataclass_reader(kind: type, whole: bool) -> _Reader:
    needed = {
        item.name
        for item in dataclasses.fields(kind)
        if whole or item.default is item.default_factory is dataclasses.MISSING
    } - _written_if_any(kind)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ShapeError(f"expected a mapping, found {value!r}")
        fields = field_readers(kind, whole)  # not before: a class may contain itself
        values, name = {}, ""
        try:
            for name, one in value.items():
                values[name] = fields[name](one)
        except ShapeError as error:
            error.within(f".{name}")
            raise
        except KeyError:
            if name in fields:
                raise
            raise ShapeError(f"unknown field {name!r}") from None
        if len(values) < len(fields) and (absent := needed - values.keys()):
            raise ShapeError(f"field {min(absent)!r} is missing")
        return kind(**values)

    return read


@cache
def field_readers(kind: type, whole: bool) -> dict[str, _Reader]:
    """Of each field of a dataclass, the function that reads its JSON value. `whole`: as in `from_jsonable`."""
    hints = get_type_hints(kind)
    return {item.name: _reader(hints[item.name], whole) for item in dataclasses.fields(kind)}
