"""A trend over days as inline SVG: few bytes per point, each with a tooltip.

Not drawn with matplotlib: a page has dozens of them, at 50 ms per figure.
Colours are the CSS variables of the reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.core.text.escaping import html_text

_WIDTH, _HEIGHT = 380.0, 170.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 20.0, 24.0
_LABEL = 64.0  # width of a version's label
_DIGITS = 12  # characters of its name


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """One point of a trend."""

    started: str  # ISO, UTC
    value: float
    title: str  # tooltip
    bad: bool = False  # drawn as a cross
    mark: str = ""  # name of a version that starts here


def trend(spots: Sequence[TrendPoint], *, alt: str, log: bool = False) -> str:
    """Values over time, connected by a line. `log`: on a logarithmic axis, with zeros at its lower end.

    Values that are not finite are crosses at the top edge. At least one value must be finite.
    """
    times = [datetime.fromisoformat(spot.started.replace("Z", "+00:00")).timestamp() for spot in spots]
    axis = _log_axis(spots) if log else _linear_axis(spots)
    span = (max(times) - min(times)) or 1.0
    xs = [_LEFT + (time - min(times)) / span * (_WIDTH - _LEFT - _RIGHT) for time in times]
    ys = [axis.y(spot.value) for spot in spots]
    parts = [*_grid(axis), *_days(spots[0].started, spots[-1].started), *_marks(spots, xs), _line(xs, ys)]
    parts += [_spot(spot, x, y) for spot, x, y in zip(spots, xs, ys)]
    box = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    return f'<svg class="plot trend" viewBox="{box}" role="img" aria-label="{html_text(alt)}">{"".join(parts)}</svg>'


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    ticks: list[tuple[float, str]]
    log: bool

    def y(self, value: float) -> float:
        """Distance from the top edge, which is where values that are not finite go; clamped to the axis."""
        if not math.isfinite(value):
            return _TOP
        scaled = math.log10(max(value, 10**self.low)) if self.log else value
        return _HEIGHT - _BOTTOM - (scaled - self.low) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)


def _finite(spots: Sequence[TrendPoint]) -> list[float]:
    return [spot.value for spot in spots if math.isfinite(spot.value)]


def _linear_axis(spots: Sequence[TrendPoint]) -> _Axis:
    """Centred on the values, with a range of at least a fifth of them, so that noise does not fill the plot."""
    values = _finite(spots)
    middle = (min(values) + max(values)) / 2
    half = max((max(values) - min(values)) * 0.6, abs(middle) * 0.1, 1e-12)
    low, high = max(middle - half, 0.0) if min(values) >= 0 else middle - half, middle + half
    step = _nice((high - low) / 2)
    first = math.ceil(low / step)
    ticks = [number * step for number in range(first, math.floor(high / step) + 1)]
    return _Axis(low, high, [(tick, f"{tick:.6g}") for tick in ticks], log=False)


def _nice(most: float) -> float:
    """The largest 1, 2 or 5 times a power of ten that is at most `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(power * factor for factor in (1, 2, 5) if power * factor <= most * 1.001)


def _log_axis(spots: Sequence[TrendPoint]) -> _Axis:
    positive = [value for value in _finite(spots) if value > 0]
    low = math.floor(math.log10(min(positive))) if positive else -8
    high = max(math.ceil(math.log10(max(positive))), low + 1) if positive else -6
    zero = any(value == 0 for value in _finite(spots))
    bottom = low - 1 if zero else low
    every = math.ceil((high - low + 1) / 4)
    ticks = [(10.0**power, f"1e{power}") for power in range(low, high + 1, every)]
    return _Axis(bottom, high, ([(0.0, "0")] if zero else []) + ticks, log=True)


def _grid(axis: _Axis) -> list[str]:
    found = []
    for value, text in axis.ticks:
        y = axis.y(value)
        found.append(f'<path class="grid" d="M{_LEFT:g} {y:.1f}H{_WIDTH - _RIGHT:g}"/>')
        found.append(f'<text x="{_LEFT - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{html_text(text)}</text>')
    return found


def _days(first: str, last: str) -> list[str]:
    ends = [(_LEFT, "start", first[:10])] + ([(_WIDTH - _RIGHT, "end", last[:10])] if last[:10] != first[:10] else [])
    return [
        f'<text x="{x:g}" y="{_HEIGHT - 7:g}" text-anchor="{anchor}">{html_text(day)}</text>' for x, anchor, day in ends
    ]


def _marks(spots: Sequence[TrendPoint], xs: Sequence[float]) -> list[str]:
    """A line at the start of each version, labelled where there is space."""
    found, free = [], _LEFT
    for spot, x in zip(spots, xs):
        if not spot.mark:
            continue
        found.append(f'<path class="mark" d="M{x:.1f} {_TOP:g}V{_HEIGHT - _BOTTOM:g}"/>')
        if x >= free:
            anchor = "end" if x > _WIDTH - _LABEL - _RIGHT else "start"
            name = html_text(spot.mark[:_DIGITS])
            found.append(f'<text class="mark" x="{x:.1f}" y="12" text-anchor="{anchor}">{name}</text>')
            free = x + _LABEL
    return found


def _line(xs: Sequence[float], ys: Sequence[float]) -> str:
    places = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys))
    return f'<path class="line" d="M{places}"/>'


def _spot(spot: TrendPoint, x: float, y: float) -> str:
    title = f"<title>{html_text(spot.title)}</title>"
    if spot.bad or not math.isfinite(spot.value):
        shape = f"M{x - 3.5:.1f} {y - 3.5:.1f}l7 7m0 -7l-7 7"
        return f'<path class="bad" d="{shape}">{title}</path>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6">{title}</circle>'
