"""The figures that one GPU is held to, read from the report of matrices/throughput_gpu.yaml."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Rounds = Mapping[str, Sequence[float]]  # load -> seconds of each round
_LOAD = re.compile(r"(?P<load>\w+), (?P<documents>\d+) documents")
LEAST_FACTOR = 1.5  # by which the slower rotary function must grow over the other one


@dataclass(frozen=True)
class Figure:
    """One figure and its limit. `verdict`: pass | fail | undecided, the last where nothing was measured."""

    name: str
    measured: str
    limit: str
    verdict: str
    where: str  # the cell


def figures_of(report: Mapping[str, Any] | None) -> list[Figure]:
    """Every figure of every cell that measured it; one line each for those that no cell did."""
    found = []
    for name, limit, find in FIGURES:
        seen = [
            Figure(name, text, limit, "pass" if well else "fail", cell["id"])
            for cell in (report["cells"] if report else [])
            for text, well in find(cell["throughput"])
        ]
        found += seen or [Figure(name, "not measured", limit, "undecided", "")]
    return found


def slope(throughput: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """How much longer the rotary function takes for most documents than for fewest, fused and unfused."""
    grows = {load: growth(throughput["rounds_s"], load) for load in ("rotary", "rotary_other")}
    if None in grows.values():
        return []
    one, other = (value for value in grows.values() if value is not None)
    factor = max(one / other, other / one)
    return [(f"{one:.3g} times, the other way {other:.3g}: factor {factor:.3g}", factor >= LEAST_FACTOR)]


def growth(rounds: Rounds, load: str) -> float | None:
    """Median time for most documents over that for fewest; None where fewer than two were timed."""
    times = {
        int(named["documents"]): statistics.median(values)
        for name, values in rounds.items()
        if (named := _LOAD.fullmatch(name)) and named["load"] == load and values
    }
    return times[max(times)] / times[min(times)] if len(times) > 1 else None


FIGURES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], list[tuple[str, bool]]]], ...] = (
    ("rotary function, fused against unfused", f"a factor of {LEAST_FACTOR}", slope),
)
