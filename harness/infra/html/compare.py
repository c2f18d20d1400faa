"""compare.html: two runs side by side, one self-contained file styled like report.html."""

from __future__ import annotations

from pathlib import Path

from harness.core.text.counts import counted
from harness.infra import templating
from harness.infra.html.filters import clipped, place_words
from harness.infra.html.marks import CHANGE_CLASSES, OUTCOME_MARKS
from harness.judge.compare.render import details, groups, numbers
from harness.judge.compare.runs import CellChange, Comparison

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_CELLS = 200  # rows per table


def render_comparison_html(comparison: Comparison) -> str:
    """The comparison as one HTML document. Deterministic."""
    environment = templating.environment(_TEMPLATES, autoescape=True, finalize=templating.visible)
    environment.filters.update(place=place_words, details=details, clip=clipped, moved=_moved, counted=counted)
    compared = numbers(comparison)
    times = [(cell, item) for cell in compared for item in cell.times]
    text = environment.get_template("compare.html.j2").render(
        style=(_TEMPLATES / "style.css").read_text(encoding="utf-8"),
        comparison=comparison,
        marks=OUTCOME_MARKS,
        change_classes=CHANGE_CLASSES,
        groups=groups(comparison),
        compared=compared[:_MOST_CELLS],
        times=times[:_MOST_CELLS],
        most=_MOST_CELLS,
        left=(len(compared) - _MOST_CELLS, len(times) - _MOST_CELLS),
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def _moved(cell: CellChange) -> dict[str, tuple[str, str]]:
    """Quantity -> (CSS class, text) of its drift. Only regressions look bad."""
    blamed = {drift.what for drift in cell.drifts if any(why.endswith(drift.text) for why in cell.regressions)}
    looks = {drift.what: "fail" if drift.what in blamed else "pass" if drift.equal else "skip" for drift in cell.drifts}
    return {drift.what: (looks[drift.what], drift.brief) for drift in cell.drifts}
