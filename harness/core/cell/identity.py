"""The name and the id of a cell, and what its id covers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.serialization import dumps, to_jsonable
from harness.core.setting import keys_of, label_of, labels
from harness.core.stack import DEFAULT

# Hashed in this order. An axis that was added later is left out at its default, so that cells keep their ids and with
# them their history.
_HASHED = ("data_path", "micro_batch_size", "dtype", "attention", "stack", "fault")


def cell_name(config: CellConfig) -> str:
    """Readable part of the id: tp2-pp4-cp1-sft, with the axes that differ from their defaults."""
    own = [key for key in keys_of(CellConfig).values() if getattr(config, key.name) != key.default]
    first, last = (
        [label_of(key, getattr(config, key.name)) for key in own if key.setting.leads is leads]
        for leads in (True, False)
    )
    parts = [*config.layout.name_parts(), *first, *labels(config.options), config.variant, *last]
    return "-".join(filter(None, [*parts, config.args.label, config.fault]))


def cell_id(config: CellConfig) -> str:
    """Stable id: the readable name plus an eight-digit hash of the resolved configuration and the stack's definition.

    The default stack is the environment that the harness runs in; its contents are not part of the id.
    """
    sections = (config.layout, config.model, config.train, config.documents, config.options)
    text = "".join([f"{_text(section)}\n" for section in sections]) + dumps([_plain(value) for value in _own(config)])
    return f"{cell_name(config)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _own(config: CellConfig) -> Iterator[Any]:
    """Yield what is hashed of a cell besides its sections. Not `lift`: it changes no number, and the name shows it."""
    yield from (getattr(config, name) for name in _HASHED)
    for name, key in keys_of(CellConfig).items():
        if name not in (*_HASHED, "lift") and (value := getattr(config, name)) != key.default:
            yield f"{name} {value}"
    timing = replace(config.timing, turns="", first=False)  # the pair's other cell is not part of the identity
    if timing.timed:
        yield timing
    if config.args.given:
        yield config.args.given
    if config.made_of and config.stack not in ("", DEFAULT):
        yield f"stack {config.made_of}"


@lru_cache(maxsize=4096)
def _text(section: Any) -> str:
    """Return JSON of a section of a configuration; cached, since the cells of a matrix have only a few different
    ones.
    """
    return dumps(_plain(section))


def _plain(part: Any) -> Any:
    """Return a dataclass as its fields, without `later` fields at their defaults; the same for each in it."""
    if not is_dataclass(part):
        return part
    later = {name: key.default for name, key in keys_of(type(part)).items() if key.setting.later}
    plain = to_jsonable(part)
    plain |= {name: _plain(getattr(part, name)) for name in plain if is_dataclass(getattr(part, name))}
    return {name: value for name, value in plain.items() if name not in later or value != later[name]}
