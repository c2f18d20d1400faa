"""Declares the key of a section or an axis once, at its field of a dataclass.

Plain metadata, so that ranks need no pydantic. harness/matrix/schema/section.py makes the validating model from it; the
axes, the JSON Schema, names and ids of cells, their reductions and the tables of the pages follow from it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import Any, get_type_hints

_KEY = "setting"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on a value, in addition to its type; in `Annotated` for the items of a list or mapping."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None  # of a text or a list
    max_length: int | None = None
    choices: Collection[str] = ()  # may grow when plug-ins are loaded
    read: Callable[[Any], Any] | None = None  # converts the file's value before validation; may raise ValueError
    check: Callable[[Any], Any] | None = None  # returns the value after validation; may raise ValueError
    pattern: str = ""  # for the JSON Schema; `check` enforces it
    written: Mapping[str, Any] | None = None  # the JSON Schema, if it does not follow from the rest


@dataclass(frozen=True, kw_only=True)
class Setting(Limits):
    """Everything about a key except its type and default, which the field itself has."""

    doc: str  # one sentence; pages show it with its links, the JSON Schema without
    upstream: str = ""  # the field of Megatron's TransformerConfig that it sets; a file may use that name too
    aliases: tuple[str, ...] = ()  # further names that a file may use
    required: bool = False  # in a file, although the dataclass has a default
    optional: bool = False  # a file may say null or leave it out; the value is then derived
    auto: bool = False  # a file may say `auto`, which is stored as None and is the default of the axis
    values: str = ""  # the page's column of values, if it does not follow from the rest
    shown_default: str = ""  # the page's column of defaults, if it does not follow from the rest
    axis: str = ""  # for a field of CellConfig: the axis that sets it
    always: bool = False  # part of a cell's name even at its default
    label: str = ""  # that part of the name, with "{}" for the value; empty: the name and the value
    leads: bool = False  # in the name of a cell it follows the layout; others follow the packing options
    in_control: bool = False  # a cell's control takes the cell's value, not the default
    shrink: bool = True  # a smaller cell may have the default
    later: bool = False  # added after ids were first stored: at its default it does not change an id

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a file may use instead of the key, Megatron's first."""
        return ((self.upstream,) if self.upstream else ()) + self.aliases

    def labelled(self, name: str, value: Any) -> str:
        """Return the part of a cell's name, e.g. "mbs2", "bf16", "recompute-full"."""
        between = "-" if isinstance(value, str) else ""
        return (self.label or f"{name}{between}{{}}").format(value)


def setting(default: Any = MISSING, /, *, default_factory: Any = MISSING, **facts: Any) -> Any:
    """Return a dataclass field, declared with the arguments of Setting."""
    metadata = {_KEY: Setting(**facts)}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A declared field: its name, type, default (MISSING where it has none) and Setting."""

    name: str
    type: Any
    default: Any
    setting: Setting


def keys_of(kind: type[Any]) -> dict[str, Key]:
    """Return the declared fields of a dataclass by name, in order."""
    any_kind: Any = kind
    return _keys_of(any_kind)


@cache
def _keys_of(kind: Any) -> dict[str, Key]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        item.name: Key(name=item.name, type=hints[item.name], default=_default(item), setting=item.metadata[_KEY])
        for item in dataclasses.fields(kind)
        if _KEY in item.metadata
    }


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def aliases_of(kind: type[Any]) -> dict[str, str]:
    """Alias -> key, for all keys of a section."""
    return {alias: name for name, key in keys_of(kind).items() for alias in key.setting.names if alias != name}


def labels(part: Any) -> list[str]:
    """Return parts of a cell's name: the values that differ from their defaults, in the order of declaration."""
    return [text for name, key in keys_of(type(part)).items() if (text := label_of(key, getattr(part, name)))]


def label_of(key: Key, value: Any) -> str:
    """Return the part of a cell's name for a value; empty at the default, unless it is always shown."""
    return key.setting.labelled(key.name, value) if key.setting.always or value != key.default else ""


def upstream_of(part: Any) -> dict[str, Any]:
    """Field of Megatron's configuration -> value, for the keys of a section."""
    return {
        key.setting.upstream: getattr(part, name) for name, key in keys_of(type(part)).items() if key.setting.upstream
    }


def count(default: int | None, doc: str, *, le: int, ge: int = 1, **facts: Any) -> Any:
    return setting(default, doc=doc, ge=ge, le=le, **facts)


def factor(default: float, doc: str, **facts: Any) -> Any:
    return setting(default, doc=doc, ge=0.0, le=1e6, **facts)
