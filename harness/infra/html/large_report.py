"""A report of many cells as several pages: report.html has the failures and a list, further pages have every cell."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from harness.core.outcomes import LaneVerdict, Outcome
from harness.infra.html.details import BAD, fault_of
from harness.infra.html.marks import OUTCOME_MARKS, anchor, is_control
from harness.infra.html.run_files import Link
from harness.judge.report.model import Report, ReportCell

MOST_CELLS = 400  # with rejected ones, of a report in one file; also of a page of a larger report
FOLDER = "report-pages"
_MOST_FAILURES = 120  # failing cells in detail on report.html
_MOST_KNOWN = 30  # known failures likewise
_MOST_GROUPS = 8  # parity groups with curves
_MOST_QUIET = 20  # cells that pass, per group with curves


@dataclass(frozen=True)
class Places:
    """The pages with the details of cells, as links from one of them."""

    pages: Mapping[str, str] = field(default_factory=dict)  # cell -> page; this page if it is not named

    def href(self, cell: str) -> str:
        return f"{self.pages.get(cell, '')}#{anchor(cell)}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A page with some of the cells."""

    number: int  # from 1
    first: int  # of all cells, from 1
    cells: Sequence[ReportCell]

    @property
    def file(self) -> str:
        return f"{self.number:03d}.html"

    @property
    def href(self) -> str:
        return f"{FOLDER}/{self.file}"

    @property
    def last(self) -> int:
        return self.first + len(self.cells) - 1

    @property
    def counts(self) -> dict[Outcome, int]:
        found = Counter(cell.outcome for cell in self.cells)
        return {outcome: found[outcome] for outcome in Outcome}


@dataclass(frozen=True)
class LargeReport:
    whole: Report

    @cached_property
    def parts(self) -> list[Part]:
        cells = self.whole.cells
        starts = range(0, len(cells), MOST_CELLS)
        return [
            Part(number=number, first=start + 1, cells=cells[start : start + MOST_CELLS])
            for number, start in enumerate(starts, 1)
        ]

    @cached_property
    def classes(self) -> dict[str, list[ReportCell]]:
        """Failing cells by fault class, those whose failure is known left out."""
        found: dict[str, list[ReportCell]] = {}
        for cell in self.whole.cells:
            if cell.outcome in BAD:
                found.setdefault(fault_of(cell), []).append(cell)
        return found

    @cached_property
    def detailed(self) -> list[ReportCell]:
        """The cells with details on report.html: of each fault class the first ones, and known failures."""
        turns = sorted((turn, cell.id) for cells in self.classes.values() for turn, cell in enumerate(cells))
        known = [cell.id for cell in self.whole.cells if cell.outcome in (Outcome.XFAIL, Outcome.XPASS)]
        chosen = {cell for _, cell in turns[:_MOST_FAILURES]} | set(known[:_MOST_KNOWN])
        return [cell for cell in self.whole.cells if cell.id in chosen]

    @cached_property
    def curves(self) -> list[ReportCell]:
        """The cells whose curves are drawn: those with details, their controls and some that pass."""
        detailed = {cell.id for cell in self.detailed}
        groups = list(dict.fromkeys(cell.group for cell in self.detailed if cell.curve.loss or cell.curve.grad_norm))
        drawn: Counter[str] = Counter(dict.fromkeys(groups[:_MOST_GROUPS], 0))
        found = []
        for cell in self.whole.cells:
            if cell.group not in drawn:
                continue
            quiet = cell.id not in detailed and not is_control(cell)
            if not quiet or drawn[cell.group] < _MOST_QUIET:
                drawn[cell.group] += quiet
                found.append(cell)
        return found

    def places(self, part: Part | None = None) -> Places:
        """The links of a part's page; None: of report.html."""
        here = {cell.id for cell in (part.cells if part else self.detailed)}
        pages = {cell.id: one.file if part else one.href for one in self.parts if one is not part for cell in one.cells}
        rejected = {} if part is None else {cell.id: "../report.html" for cell in self.whole.rejected}
        return Places({cell: page for cell, page in (pages | rejected).items() if cell not in here})

    def report_of(self, part: Part) -> Report:
        """The report with the cells of one part."""
        return replace(
            self.whole, cells=list(part.cells), counts=part.counts, rejected=[], problems=[], noise={}, since=None
        )

    def links_of(self, part: Part) -> Iterator[Link]:
        yield Link(text="report of the whole run", href="../report.html")
        yield from (
            Link(text=f"cells {one.first:,} to {one.last:,}", href=one.file)
            for one in self.parts
            if abs(one.number - part.number) == 1
        )

    @property
    def data(self) -> str:
        """JSON for the page's script: of every cell its id, outcome, page and failing lanes. Safe inside <script>."""
        marks = {outcome: number for number, outcome in enumerate(OUTCOME_MARKS)}
        cells = [
            [cell.id, marks[cell.outcome], part.number, " ".join(_failing(cell))]
            for part in self.parts
            for cell in part.cells
        ]
        outcomes = [[outcome.value, *OUTCOME_MARKS[outcome]] for outcome in marks]
        pages = {part.number: part.href for part in self.parts}
        text = json.dumps({"outcomes": outcomes, "pages": pages, "cells": cells}, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _failing(cell: ReportCell) -> list[str]:
    return [lane.value for lane, verdict in cell.lanes.items() if verdict is LaneVerdict.FAIL]


def is_large(report: Report) -> bool:
    return len(report.cells) + len(report.rejected) > MOST_CELLS
