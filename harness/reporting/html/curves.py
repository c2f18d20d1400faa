"""The curves of the HTML report: for each parity group the losses and the distances from the reference.

Only this file imports matplotlib. The SVG carries no script, no style attribute and no date. Colours are CSS variables
with the light theme as fallback, so plots follow the page into dark mode, and are visible where a viewer blocks style
sheets.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from harness.core.outcomes import Outcome
from harness.core.run.report import Report, ReportCell
from harness.core.text import html_text
from harness.core.tolerances import Bound
from harness.reporting.html.page import is_control

_POINTS = 24_000  # plotted points per kind of plot, about 12 bytes each
# Distinct placeholder colours, replaced by CSS variables in the renderer's output.
_COLOURS = {
    "ink": "#57606b",
    "grid": "#d9dee4",
    "quiet": "#8b99a9",
    "control": "#1f5fbf",
    "failed": "#c0273b",
    "known": "#8a5a00",
    "bound": "#6b4fbb",
}
# kind -> (line width, opacity, drawing order)
_LINES = {
    "quiet": (0.9, 0.75, 2.0),
    "control": (2.2, 1.0, 3.0),
    "known": (1.3, 1.0, 4.0),
    "failed": (1.6, 1.0, 5.0),
}
_MIN_SPAN = 0.1  # of the values: range of their axis
_SIZE = (4.5, 2.7)  # inches; one inch is 72 units of the view box
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "packing-harness", "font.size": 9.0, "path.simplify": True}
SeriesKind = Literal["quiet", "control", "known", "failed"]  # keys of _LINES


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One drawing, as SVG."""

    title: str
    note: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class CurveGroup:
    """The plots of one parity group, and the cells labelled in them."""

    name: str
    cells: int
    labelled: list[tuple[str, ReportCell]]
    plots: list[Plot]


def curve_groups(report: Report, numbers: Mapping[str, str]) -> Iterator[CurveGroup]:
    """Yield the plots of each parity group. `numbers`: cell id -> short name, e.g. "F1", of the cells to highlight."""
    groups: dict[str, list[ReportCell]] = {}
    for cell in report.cells:
        if cell.curve.loss or cell.curve.grad_norm:
            groups.setdefault(cell.group, []).append(cell)
    points = max(8, min(80, _POINTS // max(1, sum(len(cells) for cells in groups.values()))))
    for index, (name, cells) in enumerate(groups.items()):
        labelled = [(numbers[cell.id], cell) for cell in cells if cell.id in numbers]
        plots = [_losses(f"g{index}", cells, numbers, points), *_distances(f"g{index}", cells, numbers, points)]
        yield CurveGroup(name=name, cells=len(cells), labelled=labelled, plots=plots)


def _series(cell: ReportCell, values: Sequence[float], numbers: Mapping[str, str]) -> Series:
    kind: SeriesKind = "quiet"
    if cell.id in numbers:
        kind = "failed" if cell.outcome in (Outcome.FAIL, Outcome.ERROR) else "known"
    return Series(values=values, kind=kind, label=numbers.get(cell.id, ""))


def _losses(prefix: str, cells: list[ReportCell], numbers: Mapping[str, str], points: int) -> Plot:
    controls = [cell.curve.loss for cell in cells if is_control(cell)]
    control = next((loss for loss in [*controls, *(cell.curve.control_loss for cell in cells)] if loss), [])
    lines = [_series(cell, cell.curve.loss, numbers) for cell in cells if not is_control(cell) and cell.curve.loss]
    alt = f"Mean loss per token by step: the reference and {len(lines)} cells"
    lines += [Series(values=control, kind="control")] if control else []
    return Plot(title="Loss", note="mean per token", svg=value_plot(f"{prefix}-loss", lines, alt=alt, points=points))


def _distances(prefix: str, cells: list[ReportCell], numbers: Mapping[str, str], points: int) -> Iterator[Plot]:
    curves = [cell.curve for cell in cells]
    losses = [(curve.loss, curve.control_loss) for curve in curves]
    norms = [(curve.grad_norm, curve.control_grad_norm) for curve in curves]
    for name, title, pairs, bounds in (
        ("loss-distance", "Loss: distance from the reference", losses, [curve.loss_bound for curve in curves]),
        ("norm-distance", "Gradient norm: distance", norms, [curve.grad_norm_bound for curve in curves]),
    ):
        lines = [
            _series(cell, relative_difference(own, control), numbers)
            for cell, (own, control) in zip(cells, pairs)
            if own and control
        ]
        bound: Bound | None = next((candidate for candidate in bounds if candidate is not None), None)
        if lines:
            svg = difference_plot(
                f"{prefix}-{name}",
                lines,
                bound=bound.value if bound else None,
                alt=f"{title}, relative, by step on a log scale, for {len(lines)} cells",
                points=points,
            )
            yield Plot(title=title, note=f"relative; bound from: {bound.origin}" if bound else "relative", svg=svg)


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: a value per step. `label` is drawn at the end of the line."""

    values: Sequence[float]
    kind: SeriesKind = "quiet"
    label: str = ""


def relative_difference(values: Sequence[float], control: Sequence[float]) -> list[float]:
    """Return |value - control| / |control| per step; NaN where one is not finite, absolute where the control is 0."""
    return [
        abs(a - b) / (abs(b) or 1.0) if math.isfinite(a) and math.isfinite(b) else math.nan
        for a, b in zip(values, control)
    ]


def value_plot(name: str, series: Sequence[Series], *, alt: str, points: int = 80) -> str:
    """Plot values by step on linear axes. `name` must be unique on the page; `alt` describes the plot."""
    with matplotlib.rc_context(_SETTINGS):
        figure, axes = _axes()
        ends = []
        for line in series:
            steps, values = _thinned(line.values, points, keep_peaks=False)
            _draw_series(axes, steps, values, line)
            finite = [(step, value) for step, value in zip(steps, values) if math.isfinite(value)]
            if finite and line.label:
                ends.append((*finite[-1], line))
        _widen(axes)
        _label_ends(axes, ends)
        return _svg_text(figure, name, alt)


def _widen(axes: Any) -> None:
    """Let the axis span at least a tenth of its values, so that a change of a thousandth does not look like a fall."""
    axes.autoscale_view()
    low, high = axes.get_ylim()
    half = _MIN_SPAN * abs(low + high) / 4
    if math.isfinite(half) and (high - low) / 2 < half:
        axes.set_ylim((low + high) / 2 - half, (low + high) / 2 + half)


def difference_plot(name: str, series: Sequence[Series], *, bound: float | None, alt: str, points: int = 80) -> str:
    """Plot distances >= 0 by step on a log axis, with the bound as a dashed line.

    Exact zeros are drawn at the lowest tick, "0", and values that are not finite at the highest, "NaN".
    """
    floor, ceiling, top = _decades([value for line in series for value in line.values], bound)
    with matplotlib.rc_context(_SETTINGS):
        figure, axes = _axes()
        axes.set_yscale("log")
        ends = []
        for line in series:
            steps, values = _thinned(line.values, points, keep_peaks=True)
            placed = [(value or floor) if math.isfinite(value) else top for value in values]
            _draw_series(axes, steps, placed, line)
            if placed and line.label:
                ends.append((steps[-1], placed[-1], line))
        if bound is not None:
            axes.axhline(bound, color=_COLOURS["bound"], linewidth=1.2, linestyle=(0, (5, 3)), zorder=1.5)
            spot = axes.get_yaxis_transform()
            axes.text(0.01, bound * 1.25, f"bound {bound:g}", transform=spot, color=_COLOURS["bound"], fontsize=8.5)
        _log_ticks(axes, floor, ceiling, top)
        _label_ends(axes, ends)
        return _svg_text(figure, name, alt)


def _axes() -> tuple[Any, Any]:
    figure = Figure(figsize=_SIZE, dpi=72)
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.12, 0.15, 0.78, 0.81))
    axes.grid(axis="y", color=_COLOURS["grid"], linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_COLOURS["grid"])
    axes.tick_params(colors=_COLOURS["ink"], length=0, pad=5)
    axes.set_xlabel("step", color=_COLOURS["ink"])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    return figure, axes


def _draw_series(axes: Any, steps: list[int], values: list[float], line: Series) -> None:
    width, opacity, order = _LINES[line.kind]
    marker = "o" if len(values) == 1 or (line.kind != "quiet" and len(values) <= 20) else None
    axes.plot(
        steps,
        values,
        color=_COLOURS[line.kind],
        linewidth=width,
        alpha=opacity,
        zorder=order,
        marker=marker,
        markersize=3.2,
    )


def _thinned(values: Sequence[float], points: int, *, keep_peaks: bool) -> tuple[list[int], list[float]]:
    """Return at most `points` + 1 (step, value) pairs: the first of each bucket, or its worst with `keep_peaks`."""
    if len(values) <= points:
        return list(range(len(values))), list(values)
    width = math.ceil(len(values) / points)
    chosen = []
    for start in range(0, len(values), width):
        bucket = range(start, min(start + width, len(values)))
        chosen.append(
            max(bucket, key=lambda step: values[step] if math.isfinite(values[step]) else math.inf)
            if keep_peaks
            else start
        )
    if chosen[-1] != len(values) - 1:
        chosen.append(len(values) - 1)
    return chosen, [values[step] for step in chosen]


def _decades(values: Sequence[float], bound: float | None) -> tuple[float, float, float]:
    """Return positions on the log axis: of exact zeros, of the highest decade, and of values that are not finite."""
    positive = [value for value in values if math.isfinite(value) and value > 0] + ([bound] if bound else [])
    low = math.floor(math.log10(min(positive))) if positive else -8
    high = math.ceil(math.log10(max(positive))) if positive else -4
    high = max(high, low + 1)
    # Zeros are one decade below the values; what is not finite is above them, in proportion to the axis.
    return 10.0 ** (low - 1), 10.0**high, 10.0 ** (high + (high - low + 1) * 0.12 + 0.5)


def _log_ticks(axes: Any, floor: float, ceiling: float, top: float) -> None:
    low, high = round(math.log10(floor)) + 1, round(math.log10(ceiling))
    every = max(1, math.ceil((high - low + 1) / 6))
    ticks = [floor] + [10.0**power for power in range(low, high + 1, every)]
    lost = any(top in line.get_ydata() for line in axes.get_lines())
    names = {floor: "0"} | ({top: "NaN"} if lost else {})
    axes.yaxis.set_major_locator(FixedLocator(ticks + ([top] if lost else [])))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, f"1e{round(math.log10(value))}")))
    axes.set_ylim(floor / 1.6, (top if lost else ceiling) * 2)


def _label_ends(axes: Any, ends: list[tuple[int, float, Series]]) -> None:
    """Label lines at the right edge; lines that end close together share one label."""
    axes.autoscale_view()
    groups: list[tuple[float, list[Series]]] = []
    for step, value, line in sorted(ends, key=lambda end: (end[1], end[2].label)):
        height = float(axes.transData.transform((step, value))[1])
        if groups and height - groups[-1][0] < 11:  # units of the view box: one line of text
            groups[-1][1].append(line)
        else:
            groups.append((height, [line]))
    for height, lines in groups:
        kind = "failed" if any(line.kind == "failed" for line in lines) else lines[0].kind
        names = [line.label for line in lines]
        text = ", ".join(names) if len(names) < 3 else f"{names[0]} +{len(names) - 1}"
        height /= axes.figure.bbox.height
        axes.figure.text(0.91, height, text, color=_COLOURS[kind], fontsize=8.5, va="center")


def _svg_text(figure: Any, name: str, alt: str) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(stream.getvalue(), name, alt)


def _inline(svg: str, name: str, alt: str) -> str:
    """Return matplotlib's document as an HTML element: prefixed ids, no style sheet, attributes for styles."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"(/?)>', lambda match: "" if match[1] else "<g>", body)
    body = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', body)
    body = body.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    body = re.sub(r'style="([^"]*)"', lambda match: _attributes_of(match[1]), body)
    body = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), body)  # coordinates, never text
    body = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", body)
    body = re.sub(r"\s*\n\s*", " ", body).replace("> <", "><").replace("<defs></defs>", "")
    for role, colour in _COLOURS.items():
        body = body.replace(colour, f"var(--plot-{role}, {colour})")
    width, height = (round(side * 72, 1) for side in _SIZE)
    return (
        f'<svg class="plot" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{html_text(alt)}" '
        f'stroke-linejoin="round" stroke-linecap="butt">{body.strip()}'
    )


def _attributes_of(style: str) -> str:
    """Return `a: b; c: d` as `a="b" c="d"`, without the font family."""
    pairs = (declaration.split(":", 1) for declaration in style.split(";") if ":" in declaration)
    return " ".join(f'{key.strip()}="{value.strip()}"' for key, value in pairs if key.strip() != "font-family")
