"""report.html: one self-contained file that needs no network, and is whole without its script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from harness.core.outcomes import Outcome
from harness.infra.html import page
from harness.infra.html.details import Detail, details, evidence, known_issue, quoted, ratio_words, words
from harness.infra.html.filters import bound_origin, has_values, rate, reach_words, seconds, tail, value_text
from harness.infra.html.marks import anchor, is_control
from harness.infra.html.outcome_grid import outcome_grids
from harness.infra.html.provenance_view import banner_versions, provenance_rows
from harness.infra.html.run_files import RunFiles
from harness.judge.report.model import Report
from harness.judge.report.speed_text import gpu_texts, peak_texts, share_text
from harness.judge.report.summaries import bound_label, canary_counts

_MAX_FINDINGS = 12  # per cell
_MAX_STEPS = 8  # of the losses of a cell that passed


def render_html(report: Report, run: Path | None = None) -> str:
    """The report as one HTML document. Deterministic.

    `run`: the run directory that the page is for; files that exist there, or beside it, are linked by relative paths.
    """
    from harness.infra.html.curves import curve_groups  # imports matplotlib, which takes half a second

    _prepare()
    files = RunFiles(run)
    shown, budget = details(report, files)
    failures = [detail for detail in shown if detail.number[0] == "F"]
    numbers = {detail.cell.id: detail.number for detail in shown}
    values = {
        "report": report,
        "sentence": _sentence(report),
        "failures": failures,
        "known": [detail for detail in shown if detail.number[0] == "K"],
        "classes": _classes(failures),
        "grids": outcome_grids(report),
        "curves": list(curve_groups(report, numbers)),
        "others": evidence(report, set(numbers), budget, files),
        "quoted": quoted(shown),
        "links": files.of_run(),
        "timed": [(cell, ratio) for cell in report.cells for ratio in cell.throughput.ratios],
        "loads": [(cell, load) for cell in report.cells for load in cell.throughput.loads],
        "with_mfu": any(cell.throughput.mfu is not None for cell in report.cells),
        "peaks": peak_texts(report),
        "gpus": gpu_texts(report),
        "canaries": canary_counts(report),
        "fastest": max((cell.throughput.slots_per_s or 0.0 for cell in report.cells), default=0.0),
        "present": {cell.id for cell in report.cells},
        "detailed": set(numbers),
        "started": _started(report),
        "versions": banner_versions(report),
        "provenance": provenance_rows(report),
    }
    return page.render("report.html.j2", values)


@lru_cache(maxsize=1)
def _prepare() -> None:
    """Adds what only this page uses to the templates' environment."""
    environment = page.environment()
    environment.filters.update(
        anchor=anchor,
        reach=reach_words,
        value=value_text,
        seconds=seconds,
        rate=rate,
        share=share_text,
        tail=tail,
        known=known_issue,
    )
    environment.globals.update(
        bound_label=bound_label,
        bound_origin=bound_origin,
        has_values=has_values,
        is_control=is_control,
        max_findings=_MAX_FINDINGS,
        most_steps=_MAX_STEPS,
        words=words,
        ratio_words=ratio_words,
    )


def _classes(failures: Sequence[Detail]) -> list[tuple[str, list[Detail]]]:
    """Failing cells by fault class, the largest class first."""
    classes: dict[str, list[Detail]] = {}
    for detail in failures:
        classes.setdefault(detail.fault, []).append(detail)
    return sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))


def _sentence(report: Report) -> str:
    """The number of cells by outcome, worst first."""
    words = {
        Outcome.FAIL: "failed",
        Outcome.ERROR: "could not be decided",
        Outcome.XPASS: "passed although the matrix expects a failure",
        Outcome.FLAKY: "passed only on a retry",
        Outcome.XFAIL: "failed as the matrix expects",
        Outcome.PASS: "passed",
        Outcome.NOT_RUN: "not run",
        Outcome.REJECTED: "rejected by a rule",
    }
    parts = [f"{report.counts[key]} {word}" for key, word in words.items() if report.counts.get(key)]
    return ", ".join(parts) + "." if parts else "The run has no cells."


def _started(report: Report) -> str:
    """Start of the run, from provenance or else the run id; empty when unknown."""
    if isinstance(started := report.provenance.get("started"), str):
        return started
    stamp = re.search(r"\d{8}T?\d{6}Z?", report.run_id)
    return stamp.group() if stamp else ""
