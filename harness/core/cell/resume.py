"""The layout in which training continues from a checkpoint: the value of the axis `resume`."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from harness.core.cell.layout import Layout

SAME = "same"
_SIZES = ("tp", "pp", "cp", "vpp")
_PART = re.compile(rf"({'|'.join(_SIZES)})([1-9][0-9]{{0,3}})")


def read(value: Any) -> Any:
    """A file's value: null says that a cell does not resume."""
    return "" if value is None else value


def checked(value: str) -> str:
    """The value itself; ValueError if it is neither `same` nor sizes such as tp1-pp4."""
    if value not in ("", SAME):
        _sizes(value)
    return value


def resumed_layout(value: str, layout: Layout) -> Layout:
    """The layout in which a cell of `layout` continues: its own sizes where `value` has none, and as many ranks.

    ValueError if the ranks cannot be split so.
    """
    if value == SAME:
        return layout
    sizes = {name: getattr(layout, name) for name in _SIZES} | _sizes(value)
    each = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if layout.world_size % each:
        raise ValueError(f"{layout.world_size} ranks are not divisible by tp x pp x cp = {each}")
    sp = sizes["tp"] > 1 and (layout.sp or layout.tp == 1)
    return replace(layout, **sizes, dp=layout.world_size // each, sp=sp)


def split_for_both(layout: Layout, other: Layout) -> Layout:
    """The layout with as many replicas as it takes for a number of rows that suits both."""
    stages = layout.pp if layout.vpp > 1 else 1
    needed = math.lcm(layout.dp * stages, other.dp * (other.pp if other.vpp > 1 else 1))
    return replace(layout, dp=needed // stages)


def _sizes(value: str) -> dict[str, int]:
    parts = [_PART.fullmatch(part) for part in value.split("-")]
    found = {part[1]: int(part[2]) for part in parts if part}
    if len(found) != len(parts):
        raise ValueError(f"must be {SAME}, or sizes of {', '.join(_SIZES)} such as tp1-pp4, each at most once")
    return found
