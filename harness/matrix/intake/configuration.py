"""Configurations and overrides: dotted names, values as YAML writes them, and OmegaConf's interpolations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
_MAX_ROUNDS = 20  # of interpolations in values of interpolations
_ARITHMETIC: Mapping[str, Callable[[list[Any]], Any]] = {
    "mul": math.prod,
    "sum": sum,
    "add": sum,
    "max": max,
    "min": min,
    "div": lambda numbers: numbers[0] / numbers[1],
}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values by dotted names; lists stay whole."""
    return dict(_flat(values, prefix))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def merged(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values: those of `other`, and of `base` what it does not have."""
    result = dict(base)
    for name, value in other.items():
        below = result.get(name)
        result[name] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def scalar(text: Any) -> Any:
    """Return the value of an override: null, a bool, a number, a list, or the text without quotes."""
    if not isinstance(text, str):
        return text
    plain = text.strip()
    if plain.lower() in ("null", "none", "~", ""):
        return None
    if plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "'\"":
        return plain[1:-1]
    if plain.startswith("[") and plain.endswith("]"):
        return [scalar(item) for item in plain[1:-1].split(",") if item.strip()]
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return plain


def resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with dotted names, with the values of `${a.b}`, `${.b}`, `${oc.select:a.b,0}` and `${mul:a,b}`.

    One that has none, such as a variable of the environment, stays as it is written.
    """
    return {name: _resolved(name, value, settings) for name, value in settings.items()}


def _resolved(name: str, value: Any, settings: Mapping[str, Any]) -> Any:
    for _ in range(_MAX_ROUNDS):
        if not isinstance(value, str) or (found := _INTERPOLATION.search(value)) is None:
            return value
        known, result = _interpolated(_absolute(found[1], name), settings)
        if not known:
            return value
        value = scalar(result) if found[0] == value.strip() else value.replace(found[0], str(result))
    return value


def _absolute(text: str, name: str) -> str:
    """Return an interpolation with the name that `.a` and `..a` mean in the setting `name`."""
    bare = text.lstrip(".")
    sections = name.split(".")[: -(len(text) - len(bare))] if bare != text else []
    return ".".join([*sections, bare])


def _interpolated(text: str, settings: Mapping[str, Any]) -> tuple[bool, Any]:
    """Return whether an interpolation has a value, and which."""
    resolver, colon, rest = text.partition(":")
    if not colon:
        return text in settings, settings.get(text)
    words = [word.strip() for word in rest.split(",")]
    if resolver == "oc.select":
        return words[0] in settings or len(words) > 1, settings.get(words[0], scalar(words[-1]))
    numbers = [scalar(word) for word in words]
    if resolver not in _ARITHMETIC or not all(isinstance(number, (int, float)) for number in numbers):
        return False, None
    return True, _ARITHMETIC[resolver](numbers)


def typed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with values as YAML reads them; overrides are texts."""
    return {name: scalar(value) for name, value in settings.items()}
