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
MOST_INT = 2**63 - 1  # of a whole number in a file: every computation with it stays within a float
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
        return {name: to_jsonable(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {_key_text(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [to_jsonable(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}")


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields; empty for other classes."""
    return tuple(item.name for item in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def _key_text(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)


def from_jsonable(kind: type[T], value: Any, *, whole: bool = False) -> T:
    """The dataclass `kind` from JSON values. TypeError with the field's name when the shape differs.

    `whole`: every field must be present, even one with a default. Evidence files are read this way: their writers
    write all fields, so a missing field was removed.
    """
    any_kind: Any = kind
    try:
        return _reader(any_kind, whole)(value)  # type: ignore[no-any-return]
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return _read(kind, value, kind.__name__, whole)  # type: ignore[no-any-return]  # slower, but names the field


def dumps(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(to_jsonable(value), indent=indent, allow_nan=False, ensure_ascii=False)


def loads(text: str) -> Any:
    """JSON text to plain values, with tagged non-finite floats restored. ValueError for anything else."""
    try:
        return json.loads(text, object_hook=_untag) if _TAG in text else json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    except TypeError as error:  # a tag without a number
        raise ValueError(f"not a number: {error}") from error


_TAG = '"$float"'


def _untag(mapping: dict[str, Any]) -> Any:
    return float(mapping["$float"]) if len(mapping) == 1 and "$float" in mapping else mapping


_Reader = Callable[[Any], Any]


@cache
def _reader(kind: Any, whole: bool) -> _Reader:
    """A cached function that reads a `kind` from a JSON value; any exception means that the shape differs.

    A run of a thousand cells has millions of values, so its speed decides how long a report takes.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _optional_reader(kind, parts, whole)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_reader(kind, whole)
    if origin is list or (origin is tuple and len(parts) == 2 and parts[1] is Ellipsis):
        return _sequence_reader(origin, parts[0], whole)
    if origin is dict and parts[0] in (str, int) and parts[1] is not Any:
        key, item = parts[0], _reader(parts[1], whole)
        return lambda value: {key(name): item(one) for name, one in value.items()}
    if kind is float:
        return _float
    if origin is Literal:
        return _literal_reader(frozenset(parts))
    if kind is int:
        return _int
    if kind in (str, bool):
        return _scalar_reader(kind)
    return lambda value: _read(kind, value, "", whole)


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and -MOST_INT <= value <= MOST_INT:
        return float(value)
    raise TypeError


def _int(value: Any) -> int:
    if type(value) is int and -MOST_INT <= value <= MOST_INT:
        return value
    raise TypeError


def _scalar_reader(kind: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise TypeError

    return read


def _literal_reader(values: frozenset[Any]) -> _Reader:
    def read(value: Any) -> Any:
        if value in values:
            return value
        raise TypeError

    return read


def _optional_reader(kind: Any, parts: tuple[Any, ...], whole: bool) -> _Reader:
    others = [part for part in parts if part is not type(None)]
    if len(others) == len(parts):
        return lambda value: _read(kind, value, "", whole)
    some = _reader(others[0], whole)
    return lambda value: None if value is None else some(value)


def _sequence_reader(origin: type, part: Any, whole: bool) -> _Reader:
    item = _reader(part, whole)

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise TypeError
        return origin([item(one) for one in value])

    return read


def _dataclass_reader(kind: type, whole: bool) -> _Reader:
    def read(value: Any) -> Any:
        fields = field_readers(kind, whole)  # not before: a class may contain itself
        values = {name: fields[name](one) for name, one in value.items()}
        if whole and len(values) != len(fields):
            raise TypeError
        return kind(**values)

    return read


@cache
def field_readers(kind: type, whole: bool) -> dict[str, _Reader]:
    """Of each field of a dataclass, the function that reads its JSON value. `whole`: as in `from_jsonable`."""
    hints = get_type_hints(kind)
    return {item.name: _reader(hints[item.name], whole) for item in dataclasses.fields(kind)}


_HINTS: dict[type, dict[str, Any]] = {}  # cached, since resolving them costs more than reading a value


def _read(kind: Any, value: Any, where: str, whole: bool) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        return _read(next(part for part in get_args(kind) if part is not type(None)), value, where, whole)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, value, where, whole)
    if origin in (tuple, list):
        return _read_sequence(origin, get_args(kind), value, where, whole)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise TypeError(f"{where}: expected a mapping, found {value!r}")
        key_kind, item_kind = get_args(kind)
        return {
            _read_key(key_kind, key): _read(item_kind, item, f"{where}[{key}]", whole) for key, item in value.items()
        }
    if origin is Literal and value in get_args(kind):
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind in (int, float) and type(value) is int:
        return kind(_checked(value, where))
    if kind is float and isinstance(value, dict) and isinstance(tagged := _untag(value), float):
        return tagged
    if kind is Any or (origin is not Literal and _is_a(value, kind)):
        return value
    expected = f"one of {get_args(kind)}" if origin is Literal else getattr(kind, "__name__", kind)
    raise TypeError(f"{where}: expected {expected}, found {value!r}")


def _is_a(value: Any, kind: Any) -> bool:
    """Whether the value is of this type; True is not a number, as it is for Python."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _checked(value: int, where: str) -> int:
    if not -MOST_INT <= value <= MOST_INT:
        raise TypeError(f"{where}: a whole number of more than 64 bits")
    return value


def _read_key(kind: Any, key: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(key)
    return int(key) if kind is int else key


def _read_sequence(origin: Any, kinds: tuple[Any, ...], value: Any, where: str, whole: bool) -> Any:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{where}: expected a list, found {value!r}")
    if origin is list or (len(kinds) == 2 and kinds[1] is Ellipsis):
        return origin(_read(kinds[0], item, f"{where}[{index}]", whole) for index, item in enumerate(value))
    if len(kinds) != len(value):
        raise TypeError(f"{where}: expected {len(kinds)} items, found {len(value)}")
    pairs = enumerate(zip(kinds, value))
    return tuple(_read(part, item, f"{where}[{index}]", whole) for index, (part, item) in pairs)


def _read_dataclass(kind: type[Any], value: Any, where: str, whole: bool) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where}: expected a mapping, found {value!r}")
    hints = _HINTS[kind] = _HINTS.get(kind) or get_type_hints(kind)
    names = {item.name for item in dataclasses.fields(kind)}
    if unknown := set(value) - names:
        raise TypeError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    read = {name: _read(hints[name], item, f"{where}.{name}", whole) for name, item in value.items()}
    if whole and (absent := names - set(value)):
        raise TypeError(f"{where}: field {sorted(absent)[0]!r} is missing")
    try:
        return kind(**read)
    except TypeError as error:
        if "required keyword-only argument" in str(error):
            raise TypeError(f"{where}: {error}") from error
        raise
