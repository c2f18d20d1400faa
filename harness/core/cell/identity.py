"""The name and the id of a cell, and what its id covers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.timing import NOT_TIMED
from harness.core.packing.options import PackingOptions
from harness.core.serialization import dumps, to_jsonable
from harness.core.setting import Key, keys_of, label_of, labels
from harness.core.stack import DEFAULT


def cell_name(config: CellConfig) -> str:
    """Readable part of the id: tp2-pp4-cp1-sft, with the axes that differ from their defaults."""
    return _joined(_shape_name(config), own_identity(config).name or None)


def _shape_name(config: CellConfig) -> str:
    own = [label_of(key, value) for key in _own_keys(True) if (value := getattr(config, key.name)) != key.default]
    return _joined(*_layout_parts(config.layout), *own, *_labels(config.options), config.variant or None)


@lru_cache(maxsize=4096)
def _layout_parts(layout: Layout) -> tuple[str, ...]:
    return tuple(layout.name_parts())


@lru_cache(maxsize=4096)
def _labels(options: PackingOptions) -> tuple[str, ...]:
    return tuple(labels(options))


@cache
def _own_keys(shape: bool) -> tuple[Key, ...]:
    """Declared fields of CellConfig that belong to a cell's shape, or those that do not."""
    return tuple(key for key in keys_of(CellConfig).values() if key.setting.shape is shape)


def _joined(*parts: str | None) -> str:
    return "-".join([part for part in parts if part is not None])


class Identity(NamedTuple):
    """A part of the ids of cells, which many of them share."""

    name: str
    text: bytes  # hashed into the id


class ShapeIdentity(NamedTuple):
    """The part that comes first, already hashed."""

    name: str
    hashed: Any  # of hashlib


def shape_identity(config: CellConfig) -> ShapeIdentity:
    """The common part of the ids of cells that differ only in dtype, attention, device, stack, timing or fault."""
    shared = (config.layout, config.model, config.train, config.documents, config.options)
    text = "".join([f"{_text(part)}\n" for part in shared])
    return ShapeIdentity(_shape_name(config), hashlib.sha256(text.encode()))


# Hashed in this order. An axis that was added later is left out at its default, so that cells keep their ids and with
# them their history.
_HASHED = ("data_path", "micro_batch_size", "dtype", "attention", "stack", "fault")


@cache
def _own_fields() -> tuple[str, ...]:
    return tuple(dict.fromkeys([*_HASHED, *keys_of(CellConfig), "args", "upstream_tests", "timing", "made_of"]))


@cache
def _own_values() -> Callable[[CellConfig], tuple[Any, ...]]:
    return attrgetter(*_own_fields())


@lru_cache(maxsize=4096)
def _own_identity(values: tuple[Any, ...]) -> Identity:
    """What a cell adds to the identity of its shape; `values`: of _own_fields()."""
    own = dict(zip(_own_fields(), values))
    later = [key for name, key in keys_of(CellConfig).items() if name not in (*_HASHED, "forbidden")]
    names = [label_of(key, own[key.name]) for key in _own_keys(False) if own[key.name] != key.default]
    names += [part for part in (own["args"].label, own["upstream_tests"].name, own["fault"]) if part]
    hashed: list[Any] = [own[name] for name in _HASHED]
    hashed += [own["forbidden"]] if own["forbidden"] else []
    hashed += [f"{key.name} {own[key.name]}" for key in later if own[key.name] != key.default]
    if own["timing"] != NOT_TIMED:
        timing = replace(own["timing"], turns="", first=False)  # the pair's other cell is not part of the identity
        hashed += [timing] if timing.timed else []
    hashed += [own["args"].given] if own["args"].given else []
    hashed += [own["upstream_tests"]] if own["upstream_tests"].name else []
    hashed += [f"stack {own['made_of']}"] if own["made_of"] and own["stack"] not in ("", DEFAULT) else []
    return Identity("-".join(names), _text(tuple(hashed)).encode())


def own_identity(config: CellConfig) -> Identity:
    """What a cell adds to the identity of its shape."""
    return _own_identity(_own_values()(config))


def cell_id(config: CellConfig) -> str:
    """Stable id: the readable name plus an eight-digit hash of the resolved configuration and the stack's definition.

    The default stack is the environment that the harness runs in; its contents are not part of the id.
    """
    return joined_id(shape_identity(config), own_identity(config))


def joined_id(shape: ShapeIdentity, own: Identity) -> str:
    """The id of a cell from its two parts, for callers that make many ids with the same ones."""
    digest = shape.hashed.copy()
    digest.update(own.text)
    return _joined(shape.name, own.name or None, digest.hexdigest()[:8])


@lru_cache(maxsize=4096)
def _text(part: Any) -> str:
    """JSON of a part of a configuration; cached, since a matrix of 100,000 cells has only a few different ones."""
    return dumps([_plain(item) for item in part] if isinstance(part, tuple) else _plain(part))


def _plain(part: Any) -> Any:
    """A dataclass as its fields, without `later` fields that have their defaults."""
    if not is_dataclass(part):
        return part
    later = {name: key.default for name, key in keys_of(type(part)).items() if key.setting.later}
    plain = to_jsonable(part).items()
    return {name: value for name, value in plain if name not in later or value != later[name]}
