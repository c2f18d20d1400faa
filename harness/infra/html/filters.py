"""Template filters that turn values into short text. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from harness.core.outcomes import Finding
from harness.core.serialization import to_jsonable
from harness.core.text.durations import duration
from harness.core.text.escaping import clip

MAX_TEXT = 4000  # characters of one message or value
_MAX_TRACEBACK = 6000  # the last characters of one traceback
_PLACES = {
    "stage": "stage",
    "tp": "tp",
    "cp": "cp",
    "dp": "dp",
    "chunk": "chunk",
    "layer": "layer",
    "step": "step",
    "micro_batch": "micro-batch",
    "document": "document",
    "token": "token",
    "parameter": "parameter",
    "field": "field",
    "rank": "rank",
    "leg": "leg",
}
_OTHERS = {"boundaries": "at"}
_REACH = ("places", "ranks", "stages", "layers", "legs")


def place_words(where: Mapping[str, Any]) -> list[str]:
    """The location of a finding as text, outermost first: ["stage 1", "tp 1", "layer 3"]."""
    known = [f"{word} {where[key]}" for key, word in _PLACES.items() if where.get(key) is not None]
    rest = [key for key in where if key not in _PLACES and key not in _REACH and where[key] is not None]
    return known + [f"{_OTHERS.get(key, key.replace('_', ' '))} {_listed(where[key])}" for key in rest]


def _listed(value: Any) -> str:
    """A list of names as text instead of JSON."""
    names = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    return clip(", ".join(value), 600) if names else value_text(value)


def reach_words(where: Mapping[str, Any]) -> str:
    """The extent of a fault, e.g. "12 places; ranks 2, 3; stages 1"; empty for a single place."""
    if not isinstance(where.get("places"), int) or where["places"] < 2:
        return ""
    lists = [f"{key} {', '.join(map(str, where[key][:16]))}" for key in _REACH[1:] if where.get(key)]
    return "; ".join([f"{where['places']} places", *lists])


def value_text(value: Any) -> str:
    """A measured value or a bound as short text."""
    if isinstance(value, Mapping) and "value" in value:
        rest = [f"{key} {value_text(item)}" for key, item in value.items() if key not in ("value", "unit", "origin")]
        unit = [str(value["unit"])] if value.get("unit") else []
        return " ".join([value_text(value["value"]), *unit]) + (f" ({', '.join(rest)})" if rest else "")
    if value is None:
        return "none"
    if isinstance(value, float):
        return (
            f"{value:.6g}" if math.isfinite(value) else {"inf": "infinity", "-inf": "-infinity"}.get(repr(value), "NaN")
        )
    return clip(plain_text(value), 600)


def plain_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(to_jsonable(value), ensure_ascii=False)


def has_values(finding: Finding) -> bool:
    """Whether a finding compares values; with a bound, None is an observed value."""
    return finding.measured is not None or finding.bound is not None


def bound_origin(finding: Finding) -> str:
    """The origin of a finding's bound; empty when unknown."""
    return str(finding.bound["origin"]) if isinstance(finding.bound, Mapping) and "origin" in finding.bound else ""


def clipped(text: str | None, limit: int = MAX_TEXT) -> str:
    """The template filter `clip`; empty for None, which is NULL of the history."""
    return clip(text or "", limit)


def tail(text: str) -> str:
    """The end of a traceback, which names the cause."""
    return text if len(text) <= _MAX_TRACEBACK else f"… (the log has the beginning)\n{text[-_MAX_TRACEBACK:]}"


def seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"  # noqa: RUF001
    return f"{value:.1f} s" if value < 120 else duration(value)


def rate(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.0f}"  # noqa: RUF001
