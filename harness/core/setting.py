"""How the key of a section or an axis is declared: once, at its field of a dataclass.

Plain metadata, so that ranks need no pydantic. harness/plan/schema/section.py makes the validating model of it; the
axes, the JSON Schema, the name and id of a cell, its reductions and the tables of the pages follow from it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import Any, get_type_hints

_KEY = "setting"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a value may be, in addition to its type; in `Annotated` for the items of a list or mapping."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None  # of a text or a list
    max_length: int | None = None
    choices: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = (
        None  # converts what a file has before it is checked; ValueError says what is wrong
    )
    check: Callable[[Any], Any] | None = None  # a value of the right type, which it returns; ValueError too
    pattern: str = ""  # for the JSON Schema; `check` enforces it
    written: Mapping[str, Any] | None = None  # JSON Schema, where it does not follow from the rest


@dataclass(frozen=True, kw_only=True)
class Setting(Limits):
    """Everything about a key but its type and default, which the field has."""

    doc: str  # one sentence; pages show it with its links, the JSON Schema without
    upstream: str = ""  # field of Megatron's TransformerConfig that it becomes; a file may write that name too
    aliases: tuple[str, ...] = ()  # further names that a file may write
    required: bool = False  # in a file, although the dataclass has a default
    optional: bool = False  # a file may say null, or leave it to be worked out from the rest
    auto: bool = False  # a file may say `auto`, which is None; so is the default of an axis
    values: str = ""  # column of the page, where it does not follow from the rest
    shown_default: str = ""  # likewise
    axis: str = ""  # of a field of CellConfig: name of the axis that sets it
    always: bool = False  # part of a cell's name also at its default
    label: str = ""  # that part, "{}" being the value; empty: the name and the value
    shape: bool = False  # part of a plan.rules.rule.Shape: what decides the rows and the model of a cell
    in_control: bool = False  # the control of a cell has the cell's value, not the default
    shrink: bool = True  # a smaller cell may have the default
    later: bool = False  # added after ids were first kept: at its default it leaves no trace in an id

    @property
    def names(self) -> tuple[str, ...]:
        """What a file may write instead of the key, Megatron's name first."""
        return ((self.upstream,) if self.upstream else ()) + self.aliases

    def labelled(self, name: str, value: Any) -> str:
        """The part of a cell's name, e.g. "mbs2", "bf16", "recompute-full"."""
        between = "-" if isinstance(value, str) else ""
        return (self.label or f"{name}{between}{{}}").format(value)


def setting(default: Any = MISSING, /, *, default_factory: Any = MISSING, **facts: Any) -> Any:
    """The field of a dataclass that is declared with the facts of a Setting."""
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
    """The declared fields of a dataclass, by name, in their order."""
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
    """Further name -> key, of all keys of a section."""
    return {alias: name for name, key in keys_of(kind).items() for alias in key.setting.names if alias != name}


def labels(part: Any) -> list[str]:
    """Parts of a cell's name: what differs from its default, in the order of declaration."""
    return [text for name, key in keys_of(type(part)).items() if (text := label_of(key, getattr(part, name)))]


def label_of(key: Key, value: Any) -> str:
    """The part of a cell's name for a value; empty at the default, unless it is always shown."""
    return key.setting.labelled(key.name, value) if key.setting.always or value != key.default else ""


def upstream_of(part: Any) -> dict[str, Any]:
    """Fields of Megatron's configuration that a section's keys become."""
    return {
        key.setting.upstream: getattr(part, name) for name, key in keys_of(type(part)).items() if key.setting.upstream
    }
