"""compare.html: two runs side by side, one self-contained file styled like report.html."""

from __future__ import annotations

from pathlib import Path

from harness.reporting.compare.render import details, groups, numbers
from harness.reporting.compare.runs import CellChange, Comparison
from harness.reporting.html import page
from harness.reporting.html.page import anchor, link_from

_MAX_CELLS = 200  # rows per table


def render_comparison_html(comparison: Comparison, folder: Path | None = None, earlier: Path | None = None) -> str:
    """Return the comparison as one HTML document. Deterministic.

    `folder`: the run directory of the later run, in which the page is; `earlier`: that of the earlier one. Reports in
    them are linked.
    """
    page.environment().filters.update(details=details, moved=_moved)
    compared = numbers(comparison)
    times = [(cell, change) for cell in compared for change in cell.times]
    values = {
        "comparison": comparison,
        "groups": groups(comparison),
        "compared": compared[:_MAX_CELLS],
        "times": times[:_MAX_CELLS],
        "most": _MAX_CELLS,
        "left": (len(compared) - _MAX_CELLS, len(times) - _MAX_CELLS),
    }
    folders = {"before": earlier, "after": folder}
    reports = {
        side: link_from(folder, "report", path / "report.html") if folder and path else None
        for side, path in folders.items()
    }
    return page.render("compare.html.j2", {**values, "reports": reports, "anchor": anchor})


def _moved(cell: CellChange) -> dict[str, tuple[str, str]]:
    """Return quantity -> (CSS class, text) of its drift. Only regressions look bad."""
    blamed = {drift.what for drift in cell.drifts if any(why.endswith(drift.text) for why in cell.regressions)}
    looks = {drift.what: "fail" if drift.what in blamed else "pass" if drift.equal else "skip" for drift in cell.drifts}
    return {drift.what: (looks[drift.what], drift.brief) for drift in cell.drifts}
