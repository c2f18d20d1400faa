"""index.html of a reports folder: its matrices with since when they fail, and its runs."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from harness.infra.html import page
from harness.infra.html.filters import seconds
from harness.infra.html.marks import anchor
from harness.infra.runs.indexed import IndexedRun, matrices

_MOST_RUNS = 500  # rows
# verdict or state -> (CSS class of the outcome whose colour it has, symbol, word)
_LABELS = {
    "pass": ("o-PASS", "✓", "pass"),
    "fail": ("o-FAIL", "✕", "fail"),
    "error": ("o-ERROR", "!", "undecided"),
    "running": ("o-XPASS", "…", "running"),
    "interrupted": ("o-ERROR", "!", "interrupted"),
    "unreadable": ("o-ERROR", "?", "unreadable"),
}


def render_index(runs: Sequence[IndexedRun], *, history: bool) -> str:
    """The index as one HTML document with relative links. Deterministic.

    `runs`: the newest first; `history`: whether there is a history.html beside the page.
    """
    groups = matrices(runs)
    values = {
        "runs": runs[:_MOST_RUNS],
        "left_out": len(runs) - len(runs[:_MOST_RUNS]),
        "matrices": groups,
        "red": [group for group in groups if group.red_since],
        "unfinished": [run for run in runs if run.state != "finished"],
        "history": history,
        "labels": _LABELS,
        "anchor": anchor,
        "path": lambda run, name: f"{quote(run.run_id, safe='')}/{name}",
        "duration": seconds,
    }
    return page.render("index.html.j2", values)
