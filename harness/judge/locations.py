"""Locations of observations, and the `where` of a finding that summarises many of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from harness.core.cell.layout import Coordinates
from harness.core.text import noun


class RankLocation(NamedTuple):
    """One rank, leg, step, micro-batch, chunk and, in the training leg, layer (global, from 1)."""

    rank: int
    at: Coordinates
    leg: Literal["metadata", "training"]
    step: int
    micro_batch: int
    chunk: int
    layer: int | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """Return the sort key: by time, then by coordinates."""
        at = self.at
        when = (int(self.leg == "training"), self.step, self.micro_batch)
        return (*when, at.pp, self.chunk, self.layer or 0, at.dp, at.tp, at.cp)

    def __str__(self) -> str:
        layer = "" if self.layer is None else f", layer {self.layer}"
        return f"{self.at} (rank {self.rank}){layer}, step {self.step}, micro-batch {self.micro_batch}, {self.leg} leg"


def where_of(place: Coordinates, **more: Any) -> dict[str, Any]:
    """Return the `where` of a finding, from coordinates and further keys; None values are left out."""
    where = {"stage": place.pp, "tp": place.tp, "cp": place.cp, "dp": place.dp, **more}
    return {key: value for key, value in where.items() if value is not None}


def fold(places: Sequence[RankLocation]) -> tuple[RankLocation, dict[str, Any]]:
    """Return the first location, and a `where` that holds it and the extent of the fault."""
    first = min(places, key=lambda place: place.order)
    where = where_of(
        first.at,
        rank=first.rank,
        leg=first.leg,
        step=first.step,
        micro_batch=first.micro_batch,
        chunk=first.chunk,
        layer=first.layer,
    )
    where["places"] = len(places)
    where["stages"] = sorted({place.at.pp for place in places})
    where["ranks"] = sorted({place.rank for place in places})
    where["layers"] = sorted({place.layer for place in places if place.layer is not None})
    where["legs"] = sorted({place.leg for place in places})
    return first, where


def extent(where: dict[str, Any]) -> str:
    """Return the extent, e.g. '; 12 places on ranks 2, 3 (stage 1; layer 2)'; '' if there is only one place."""
    if where["places"] == 1:
        return ""
    layers = f"; {numbered('layer', where['layers'])}" if where["layers"] else ""
    stages = numbered("stage", where["stages"])
    return f"; {where['places']} places on {numbered('rank', where['ranks'])} ({stages}{layers})"


def numbered(one: str, items: Sequence[Any]) -> str:
    """Return 'rank 1' or 'ranks 1, 2'."""
    return f"{noun(len(items), one)} {listed(items)}"


def in_short(measured: Sequence[Any] | None, expected: Sequence[Any], whose: str, most: int = 8) -> str:
    """Return numbers beside those of a plan or control, e.g. '1, 3; control 2, 2'; of long lists, how they differ."""
    if measured and max(len(measured), len(expected)) > most:
        return difference(measured, expected)
    return f"{listed(measured) if measured else 'not recorded'}; {whose} {listed(expected)}"


def unequal(name: str, measured: object, expected: object, most: int = 16) -> str:
    """Return e.g. 'x is [0, 3], expected [0, 4]'; of lists with more entries than `most`, how they differ."""
    if isinstance(measured, list) and isinstance(expected, list) and max(len(measured), len(expected)) > most:
        return f"{name}: {difference(measured, expected)}"
    values = [f"[{listed(value, most)}]" if isinstance(value, list) else value for value in (measured, expected)]
    return f"{name} is {values[0]}, expected {values[1]}"


def difference(measured: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return how two lists differ, e.g. '50 entries, 52 expected; first difference at index 7: 448, expected 512'."""
    pairs = list(zip_longest(measured, expected, fillvalue="no entry"))
    wrong = [index for index, (value, expected_value) in enumerate(pairs) if value != expected_value]
    sizes = f"{len(measured)} entries, {len(expected)} expected"
    if len(measured) == len(expected):
        sizes = f"{len(wrong)} of {len(pairs)} entries differ"
    value, expected_value = pairs[wrong[0]]
    return f"{sizes}; first difference at index {wrong[0]}: {value}, expected {expected_value}"


def listed(items: Sequence[Any], most: int = 8) -> str:
    """Return the first `most` items, separated by commas, and how many more there are."""
    text = ", ".join(str(item) for item in items[:most])
    return text if len(items) <= most else f"{text} and {len(items) - most} more"
