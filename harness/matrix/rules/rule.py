"""A rule of sequence packing: an id, its source, and a predicate that returns why it forbids a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.core.cell.config import CellConfig


@dataclass(frozen=True)
class Rule:
    """`predicate` returns None if the cell is allowed, else the reason, with the arithmetic in the user's numbers."""

    id: str
    source: str
    predicate: Callable[[CellConfig], str | None]


def not_divisible(what: str, value: int, by: str, divisor: int) -> str | None:
    """'model.layers 4 is not divisible by pp 3 x vpp 1 = 3: 4 = 1 * 3 + 1', or None when it is."""
    if value % divisor == 0:
        return None
    return f"{what} {value} is not divisible by {by}: {value} = {value // divisor} * {divisor} + {value % divisor}"
