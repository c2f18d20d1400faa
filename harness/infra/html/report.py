"""report.html: a self-contained file that needs no network, and is whole without its script.

With many cells, their details are on further pages (large_report.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.core.outcomes import Outcome
from harness.infra.html import page
from harness.infra.html.details import Detail, details, evidence, known_issue, quoted, ratio_words, words
from harness.infra.html.filters import bound_origin, has_values, rate, reach_words, seconds, tail, value_text
from harness.infra.html.large_report import LargeReport, Places, is_large
from harness.infra.html.marks import anchor, is_control
from harness.infra.html.outcome_grid import grid_of_counts, outcome_grids
from harness.infra.html.provenance_view import banner_versions, provenance_rows
from harness.infra.html.run_files import RunFiles
from harness.judge.report.model import Report
from harness.judge.report.speed_text import gpu_texts, peak_texts, share_text
from harness.judge.report.summaries import bound_label, canary_counts

PAGE, TEMPLATE = "report.html", "report.html.j2"
_HERE = Places()
_MAX_FINDINGS = 12  # per cell
_MAX_STEPS = 8  # of the losses of a cell that passed
_MOST_ROWS = 300  # of tables of rejected cells, noise floors and changes since the run before


def render_html(report: Report, run: Path | None = None) -> str:
    """The report as one HTML document; of a large report, its first page. Deterministic.

    `run`: the run directory that the page is for; files that exist there, or beside it, are linked by relative paths.
    """
    return next(render_pages(report, run))[1]


def render_pages(report: Report, run: Path | None = None) -> Iterator[tuple[str, str]]:
    """report.html, and of a large report the further pages: path in the run directory, document."""
    _prepare()
    if not is_large(report):
        yield PAGE, page.render(TEMPLATE, _values(report, report, RunFiles(run)))
        return
    large, files = LargeReport(report), RunFiles(run)
    yield PAGE, page.render(TEMPLATE, _first_page(large, files))
    for part in large.parts:
        place = large.places(part)
        values = _values(large.report_of(part), report, RunFiles(run, "../"), place)
        values |= {"part": part, "links": list(large.links_of(part)), "canaries": [], "loads": [], "timed": []}
        yield part.href, page.render(TEMPLATE, values)


def _first_page(large: LargeReport, files: RunFiles) -> dict[str, Any]:
    """What report.html shows of a large report: failures in detail, the other cells as counts and a list."""
    whole, places = large.whole, large.places()
    shown = replace(whole, cells=large.detailed)
    values = _values(shown, whole, files, places, curves=replace(whole, cells=large.curves))
    details = {item.cell.id: item for item in values["failures"]}
    classes = []
    for name, cells in sorted(large.classes.items(), key=lambda item: (-len(item[1]), item[0])):
        found = [details[cell.id] for cell in cells if cell.id in details]
        classes.append((name, found, len(cells) - len(found)))
    return values | {
        "classes": classes,
        "grids": [grid_of_counts(whole, places.href)],
        "parts": large.parts,
        "data": large.data,
        "fastest": 0.0,  # rates are on the further pages
    }


def _values(
    report: Report,
    whole: Report,
    files: RunFiles,
    places: Places = _HERE,
    curves: Report | None = None,
) -> dict[str, Any]:
    """`report`: the cells of the page; `whole`: all; `curves`: those drawn, of a part of a large report none."""
    from harness.infra.html.curves import curve_groups  # imports matplotlib, which takes half a second

    drawn = curves or (report if report is whole else None)
    shown, budget = details(report, files)
    failures = [detail for detail in shown if detail.number[0] == "F"]
    numbers = {detail.cell.id: detail.number for detail in shown}
    return {
        "report": report,
        "cells": len(whole.cells),
        "href": places.href,
        "sentence": _sentence(report),
        "failures": failures,
        "known": [detail for detail in shown if detail.number[0] == "K"],
        "classes": _classes(failures),
        "grids": outcome_grids(report),
        "curves": list(curve_groups(drawn, numbers)) if drawn else [],
        "others": evidence(report, set(numbers), budget, files),
        "quoted": quoted(shown),
        "links": files.of_run(),
        "timed": [(cell, ratio) for cell in report.cells for ratio in cell.throughput.ratios],
        "loads": [(cell, load) for cell in report.cells for load in cell.throughput.loads],
        "with_mfu": any(cell.throughput.mfu is not None for cell in report.cells),
        "peaks": peak_texts(report),
        "gpus": gpu_texts(report),
        "canaries": canary_counts(whole),
        "fastest": max((cell.throughput.slots_per_s or 0.0 for cell in report.cells), default=0.0),
        "present": {cell.id for cell in whole.cells},
        "part": None,  # of a large report
        "parts": (),
        "data": "",
        "started": _started(report),
        "versions": banner_versions(report),
        "provenance": provenance_rows(report),
    }


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
        most_rows=_MOST_ROWS,
        words=words,
        ratio_words=ratio_words,
    )


def _classes(failures: Sequence[Detail]) -> list[tuple[str, list[Detail], int]]:
    """Failing cells by fault class, the largest class first, and how many more there are."""
    classes: dict[str, list[Detail]] = {}
    for detail in failures:
        classes.setdefault(detail.fault, []).append(detail)
    return [(name, items, 0) for name, items in sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))]


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
    if partial := sum(bool(cell.partial) for cell in report.cells if cell.outcome is Outcome.PASS):
        words[Outcome.PASS] = f"passed, {partial} of them in part"
    parts = [f"{report.counts[key]} {word}" for key, word in words.items() if report.counts.get(key)]
    return ", ".join(parts) + "." if parts else "The run has no cells."


def _started(report: Report) -> str:
    """Start of the run, from provenance or else the run id; empty when unknown."""
    if isinstance(started := report.provenance.get("started"), str):
        return started
    stamp = re.search(r"\d{8}T?\d{6}Z?", report.run_id)
    return stamp.group() if stamp else ""
