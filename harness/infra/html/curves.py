"""The curves of the HTML report: for each parity group the losses and the distances from the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.core.outcomes import Outcome
from harness.core.tolerances import Bound
from harness.infra.html.drawing.plots import Series, SeriesKind, difference_plot, relative_difference, value_plot
from harness.infra.html.marks import is_control
from harness.judge.report.model import LossCurve, Report, ReportCell

_POINTS = 24_000  # plotted points per kind of plot, about 12 bytes each


@dataclass(frozen=True, kw_only=True)
class Plot:
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
    """`numbers`: cell id -> short name, e.g. "F1", of the cells to highlight."""
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
    for name, title, pair, bounds in (
        ("loss-distance", "Loss: distance from the reference", _loss_pair, [cell.curve.loss_bound for cell in cells]),
        ("norm-distance", "Gradient norm: distance", _norm_pair, [cell.curve.grad_norm_bound for cell in cells]),
    ):
        pairs = [(cell, *pair(cell.curve)) for cell in cells]
        lines = [_series(cell, relative_difference(a, b), numbers) for cell, a, b in pairs if a and b]
        bound: Bound | None = next((item for item in bounds if item is not None), None)
        if lines:
            svg = difference_plot(
                f"{prefix}-{name}",
                lines,
                bound=bound.value if bound else None,
                alt=f"{title}, relative, by step on a log scale, for {len(lines)} cells",
                points=points,
            )
            yield Plot(title=title, note=f"relative; bound from: {bound.origin}" if bound else "relative", svg=svg)


def _loss_pair(curve: LossCurve) -> tuple[list[float], list[float]]:
    return curve.loss, curve.control_loss


def _norm_pair(curve: LossCurve) -> tuple[list[float], list[float]]:
    return curve.grad_norm, curve.control_grad_norm
