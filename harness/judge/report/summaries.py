"""Short texts that several renderers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.core.outcomes import Finding
from harness.judge.report.model import Report


class CanaryCount(NamedTuple):
    """The number of cells in which a canary had the same result."""

    canary: str
    what: str  # "ran", "did not end", or why it does not apply
    cells: int


def canary_counts(report: Report) -> list[CanaryCount]:
    """Canaries in the order of the matrix; for each, the most frequent result first."""
    names = list(dict.fromkeys(name for cell in report.cells for name in cell.canaries))
    counts = Counter((name, what) for cell in report.cells for name, what in cell.canaries.items())
    order = sorted(counts.items(), key=lambda item: (names.index(item[0][0]), -item[1], item[0][1]))
    return [CanaryCount(name, what, cells) for (name, what), cells in order]


def bound_label(finding: Finding) -> str:
    """Label of a finding's `bound`: "bound" for a numeric limit, "expected" for a value that is compared exactly."""
    bound = finding.bound
    is_limit = isinstance(bound, float) or (isinstance(bound, Mapping) and "unit" in bound)
    return "bound" if is_limit else "expected"


def place_text(where: Mapping[str, Any]) -> str:
    """ "stage 1, tp 1, layer 3": the single values of a place, without the lists that give a fault's extent."""
    return ", ".join(
        f"{key.replace('_', '-')} {value}"
        for key, value in where.items()
        if value is not None and not isinstance(value, (list, tuple, dict)) and key != "places"
    )
