"""report.html: a self-contained file that needs no network, and is whole without its script.

A large report has its first failures in detail on report.html, and further pages have every cell.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from harness.core.cell.axes import LAYOUT, labelled
from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, ReportCell, ReportRejected
from harness.core.serialization import to_jsonable
from harness.core.stack import DEFAULT, StackFacts
from harness.core.text import clip
from harness.reporting.html import page
from harness.reporting.html.details import (
    BAD,
    Detail,
    details,
    evidence,
    fault_of,
    known_issue,
    quoted,
    ratio_words,
    words,
)
from harness.reporting.html.page import (
    MAX_TEXT,
    OUTCOME_MARKS,
    Link,
    RunFiles,
    anchor,
    bound_origin,
    has_values,
    is_control,
    plain_text,
    rate,
    reach_words,
    seconds,
    tail,
    value_text,
)
from harness.reporting.summaries import bound_label, canary_counts, gpu_texts, peak_texts, share_text

_MAX_FINDINGS = 12  # per cell
_MAX_STEPS = 8  # of the losses of a cell that passed
_MAX_ROWS = 300  # of tables of rejected cells, noise floors and changes since the run before
MAX_CELLS = 400  # with rejected ones, of a report in one file; also of a page of a larger report
PARTS_FOLDER = "report-pages"
_MAX_FAILURES = 120  # failing cells in detail on report.html
_MAX_KNOWN = 30  # known failures in detail on report.html
_MAX_GROUPS = 8  # parity groups with curves
_MAX_QUIET = 20  # cells that pass, per group with curves
_BANNER_PACKAGES = ("torch", "megatron-core", "transformer-engine")  # of a stack, in the banner
_STACKS_NAMED = 3  # in the banner; if there are more, only their number
_MAX_ITEMS = 6  # of a list; longer ones are folded
PAGE, TEMPLATE = "report.html", "report.html.j2"


def render_html(report: Report, run: Path | None = None) -> str:
    """Return the report as one HTML document; of a large report, its first page. Deterministic.

    `run`: the run directory that the page is for; files that exist there, or beside it, are linked by relative paths.
    """
    return next(render_pages(report, run))[1]


def render_pages(report: Report, run: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield report.html, and of a large report the further pages: path in the run directory, document."""
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
    """Return what report.html shows of a large report: failures in detail, the other cells as counts and a list."""
    whole, places = large.whole, large.places()
    shown = replace(whole, cells=large.detailed)
    values = _values(shown, whole, files, places, curves=replace(whole, cells=large.curves))
    details = {detail.cell.id: detail for detail in values["failures"]}
    classes = []
    for name, cells in sorted(large.classes.items(), key=lambda item: (-len(item[1]), item[0])):
        class_details = [details[cell.id] for cell in cells if cell.id in details]
        classes.append((name, class_details, len(cells) - len(class_details)))
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
    places: Places | None = None,
    curves: Report | None = None,
) -> dict[str, Any]:
    """Return the template's values. `report`: the page's cells; `whole`: all; `curves`: those drawn, of a part none."""
    from harness.reporting.html.curves import curve_groups  # imports matplotlib, which takes half a second

    drawn = curves or (report if report is whole else None)
    shown, budget = details(report, files)
    failures = [detail for detail in shown if detail.number[0] == "F"]
    numbers = {detail.cell.id: detail.number for detail in shown}
    return {
        "report": report,
        "cells": len(whole.cells),
        "href": (places or Places()).href,
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
    """Add what only this page uses to the templates' environment."""
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
        most_rows=_MAX_ROWS,
        words=words,
        ratio_words=ratio_words,
    )


def _classes(failures: Sequence[Detail]) -> list[tuple[str, list[Detail], int]]:
    """Return failing cells by fault class, the largest class first, and how many more there are."""
    classes: dict[str, list[Detail]] = {}
    for detail in failures:
        classes.setdefault(detail.fault, []).append(detail)
    return [(name, items, 0) for name, items in sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))]


def _sentence(report: Report) -> str:
    """Return the number of cells by outcome, worst first."""
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
    """Return the start of the run, from provenance or else the run id; '' when unknown."""
    stamp = re.search(r"\d{8}T?\d{6}Z?", report.run_id)
    return report.provenance.started or (stamp.group() if stamp else "")


@dataclass(frozen=True)
class Places:
    """The pages with the details of cells, as links from one of them."""

    pages: Mapping[str, str] = field(default_factory=dict)  # cell -> page; this page if it is not named

    def href(self, cell: str) -> str:
        """Return the link to a cell's details."""
        return f"{self.pages.get(cell, '')}#{anchor(cell)}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A page with some of the cells."""

    number: int  # from 1
    first: int  # of all cells, from 1
    cells: Sequence[ReportCell]

    @property
    def file(self) -> str:
        """Return the file name of the page."""
        return f"{self.number:03d}.html"

    @property
    def href(self) -> str:
        """Return the path of the page in the run directory."""
        return f"{PARTS_FOLDER}/{self.file}"

    @property
    def last(self) -> int:
        """Return the number of the page's last cell, of all cells."""
        return self.first + len(self.cells) - 1

    @property
    def counts(self) -> dict[Outcome, int]:
        """Return outcome -> number of the page's cells, also those that are 0."""
        outcomes = Counter(cell.outcome for cell in self.cells)
        return {outcome: outcomes[outcome] for outcome in Outcome}


@dataclass(frozen=True)
class LargeReport:
    """A report that is spread over several pages."""

    whole: Report

    @cached_property
    def parts(self) -> list[Part]:
        """Return the further pages, which together have every cell."""
        cells = self.whole.cells
        starts = range(0, len(cells), MAX_CELLS)
        return [
            Part(number=number, first=start + 1, cells=cells[start : start + MAX_CELLS])
            for number, start in enumerate(starts, 1)
        ]

    @cached_property
    def classes(self) -> dict[str, list[ReportCell]]:
        """Return failing cells by fault class, those whose failure is known left out."""
        by_class: dict[str, list[ReportCell]] = {}
        for cell in self.whole.cells:
            if cell.outcome in BAD:
                by_class.setdefault(fault_of(cell), []).append(cell)
        return by_class

    @cached_property
    def detailed(self) -> list[ReportCell]:
        """Return the cells with details on report.html: of each fault class the first ones, and known failures."""
        turns = sorted((turn, cell.id) for cells in self.classes.values() for turn, cell in enumerate(cells))
        known = [cell.id for cell in self.whole.cells if cell.outcome in (Outcome.XFAIL, Outcome.XPASS)]
        chosen = {cell for _, cell in turns[:_MAX_FAILURES]} | set(known[:_MAX_KNOWN])
        return [cell for cell in self.whole.cells if cell.id in chosen]

    @cached_property
    def curves(self) -> list[ReportCell]:
        """Return the cells whose curves are drawn: those with details, their controls and some that pass."""
        detailed = {cell.id for cell in self.detailed}
        groups = list(dict.fromkeys(cell.group for cell in self.detailed if cell.curve.loss or cell.curve.grad_norm))
        drawn: Counter[str] = Counter(dict.fromkeys(groups[:_MAX_GROUPS], 0))
        cells = []
        for cell in self.whole.cells:
            if cell.group not in drawn:
                continue
            quiet = cell.id not in detailed and not is_control(cell)
            if not quiet or drawn[cell.group] < _MAX_QUIET:
                drawn[cell.group] += quiet
                cells.append(cell)
        return cells

    def places(self, part: Part | None = None) -> Places:
        """Return the links of a part's page; None: of report.html."""
        here = {cell.id for cell in (part.cells if part else self.detailed)}
        pages = {
            cell.id: other.file if part else other.href
            for other in self.parts
            if other is not part
            for cell in other.cells
        }
        rejected = {} if part is None else {cell.id: "../report.html" for cell in self.whole.rejected}
        return Places({cell: page for cell, page in (pages | rejected).items() if cell not in here})

    def report_of(self, part: Part) -> Report:
        """Return the report with the cells of one part."""
        return replace(
            self.whole, cells=list(part.cells), counts=part.counts, rejected=[], problems=[], noise={}, since=None
        )

    def links_of(self, part: Part) -> Iterator[Link]:
        """Yield the links of a part's page: to the first page and to its neighbours."""
        yield Link(text="report of the whole run", href="../report.html")
        yield from (
            Link(text=f"cells {other.first:,} to {other.last:,}", href=other.file)
            for other in self.parts
            if abs(other.number - part.number) == 1
        )

    @property
    def data(self) -> str:
        """Return JSON for the page's script: each cell's id, outcome, page and failing lanes. Safe inside <script>."""
        marks = {outcome: number for number, outcome in enumerate(OUTCOME_MARKS)}
        cells = [
            [cell.id, marks[cell.outcome], part.number, " ".join(_failing_lanes(cell))]
            for part in self.parts
            for cell in part.cells
        ]
        outcomes = [[outcome.value, *OUTCOME_MARKS[outcome]] for outcome in marks]
        pages = {part.number: part.href for part in self.parts}
        text = json.dumps({"outcomes": outcomes, "pages": pages, "cells": cells}, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _failing_lanes(cell: ReportCell) -> list[str]:
    return [lane.value for lane, verdict in cell.lanes.items() if verdict is LaneVerdict.FAIL]


def is_large(report: Report) -> bool:
    """Return whether a report takes more than one page."""
    return len(report.cells) + len(report.rejected) > MAX_CELLS


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One cell in a square of the grid."""

    outcome: Outcome
    cell: str  # its id
    control: bool = False
    symbol: str
    word: str
    note: str  # second line: the failing lanes, or "control", "in part"
    href: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Layouts by data paths; for one data path on several stacks, layouts by stacks, the longer side as rows."""

    title: str  # the data path; empty when columns are data paths
    corner: str  # header of the row names
    columns: list[str]
    rows: list[tuple[str, list[list[Chip]]]]  # one square per column, with a chip per cell


def outcome_grids(report: Report) -> list[Grid]:
    """Return one chip for every cell and rejected cell; a grid per data path if there are several stacks."""
    marks = _chips(report)
    usual = _usual_axes([axes for axes, _ in marks])
    if "stack" not in usual:
        return [_grid("", marks, usual, "packing")]
    stacks = list(dict.fromkeys(_stack_of(axes) for axes, _ in marks))
    marks.sort(key=lambda mark: stacks.index(_stack_of(mark[0])))
    paths = dict.fromkeys(_path_of(axes) for axes, _ in marks)
    return [_grid(path, [mark for mark in marks if _path_of(mark[0]) == path], usual, "stack") for path in paths]


def grid_of_counts(report: Report, href: Callable[[str], str]) -> Grid:
    """Return a grid of many cells: a chip for every outcome in a square, with count and link to the first such cell."""
    grid = _grid("", _chips(report), {}, "packing")
    return replace(grid, rows=[(row, [_counted_chips(chips, href) for chips in squares]) for row, squares in grid.rows])


def _counted_chips(chips: Sequence[Chip], href: Callable[[str], str]) -> list[Chip]:
    firsts: dict[Outcome, Chip] = {}
    for chip in chips:
        firsts.setdefault(chip.outcome, chip)
    counts = Counter(chip.outcome for chip in chips)
    return [
        replace(first, word=f"{counts[outcome]:,} {first.word}", note="", href=href(first.cell))
        for outcome, first in firsts.items()
    ]


def _chips(report: Report) -> list[tuple[dict[str, Any], Chip]]:
    """Return the axes and the mark of every cell and rejected cell."""
    marks = [(_axes_of(cell), _chip(cell)) for cell in report.cells]
    return marks + [(_axes_of(rejected), _rejected_chip(rejected)) for rejected in report.rejected]


def _grid(title: str, marks: list[tuple[dict[str, Any], Chip]], usual: Mapping[str, str], across: str) -> Grid:
    rows: dict[tuple[Any, ...], str] = {}
    columns: dict[str, None] = {}
    squares: dict[tuple[str, str], list[Chip]] = {}
    controls = _only_controls(marks, across)
    for axes, chip in marks:
        row = _row_name(axes, usual)
        column = _path_of(axes) if across == "packing" else _stack_of(axes)
        rows[_row_order(axes, row)] = row
        columns[column] = None
        squares.setdefault((row, column), []).append(chip)
    down, over, corner = [rows[key] for key in sorted(rows)], sorted(columns, key=controls.__contains__), "layout"
    if title and len(over) > len(down):
        down, over, corner = over, down, across
        squares = {(column, row): chips for (row, column), chips in squares.items()}
    lines = [(name, [squares.get((name, column), []) for column in over]) for name in down]
    return Grid(title=title, corner=corner, columns=over, rows=lines)


def _only_controls(marks: list[tuple[dict[str, Any], Chip]], across: str) -> set[str]:
    """Return columns with nothing but controls: they come last, so that a narrow window shows the code under test."""
    name = _path_of if across == "packing" else _stack_of
    return {name(axes) for axes, _ in marks} - {name(axes) for axes, chip in marks if not chip.control}


def _path_of(axes: dict[str, Any]) -> str:
    return str(axes.get("packing", "cells"))


def _stack_of(axes: dict[str, Any]) -> str:
    return str(axes.get("stack", DEFAULT))


def _axes_of(cell: ReportCell | ReportRejected) -> dict[str, Any]:
    layout = {name: getattr(cell.layout, name) for name in LAYOUT} if isinstance(cell, ReportCell) else {}
    return {**cell.axes, **layout}


def _usual_axes(all_axes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the most frequent value of each axis that varies; on a tie the first."""
    values: dict[str, Counter[str]] = {}
    for axes in all_axes:
        for name, value in axes.items():
            values.setdefault(name, Counter())[str(value)] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in values.items() if len(counts) > 1}


def _row_name(axes: dict[str, Any], usual: Mapping[str, str]) -> str:
    """Return a row's name as in cell ids: tp2-pp4-cp1, other sizes above one, then axes off the most frequent value."""
    parts = [f"{name}{axes.get(name, 1)}" for name in ("tp", "pp", "cp")]
    parts += [f"{name}{axes[name]}" for name in ("dp", "ep", "vpp") if axes.get(name, 1) not in (1, None)]
    if axes.get("tp", 1) != 1 and axes.get("sp") is False:
        parts.append("nosp")
    if axes.get("micro_batch_size", 1) != 1:
        parts.append(f"mbs{axes['micro_batch_size']}")
    known = {*LAYOUT, "micro_batch_size", "packing", "stack"}
    rest = [name for name in axes if name in usual and name not in known and str(axes[name]) != usual[name]]
    return "-".join(parts + [labelled(name, axes[name]) for name in rest])


def _row_order(axes: dict[str, Any], name: str) -> tuple[Any, ...]:
    sizes = [axes.get(size, 1) for size in ("tp", "pp", "cp", "dp", "ep", "vpp", "micro_batch_size")]
    return (*(size if isinstance(size, int) else 0 for size in sizes), name)


def _chip(cell: ReportCell) -> Chip:
    symbol, word = OUTCOME_MARKS[cell.outcome]
    notes = ["control"] * is_control(cell) + ["in part"] * bool(cell.partial)
    note = ", ".join(_failing_lanes(cell) or notes)
    title = cell.id + (f": {cell.first.message}" if cell.first else f": {cell.reason}" if cell.reason else "")
    href = f"#{anchor(cell.id)}"
    return Chip(
        outcome=cell.outcome,
        cell=cell.id,
        control=is_control(cell),
        symbol=symbol,
        word=word,
        note=note,
        href=href,
        title=title[:300],
    )


def _rejected_chip(rejected: ReportRejected) -> Chip:
    symbol, word = OUTCOME_MARKS[Outcome.REJECTED]
    return Chip(
        outcome=Outcome.REJECTED,
        cell=rejected.id,
        symbol=symbol,
        word=word,
        note=rejected.rule,
        href=f"#{anchor(rejected.id)}",
        title=f"{rejected.id}: {rejected.reason}"[:300],
    )


@dataclass(frozen=True, kw_only=True)
class ProvenanceRow:
    """A fact of the provenance: dotted key and text."""

    name: str
    text: str
    items: int = 0  # of a list with so many that it is folded


def provenance_rows(report: Report) -> list[ProvenanceRow]:
    """Return all facts of the provenance."""
    return list(_flat_rows(_in_words(report.provenance)))


def banner_versions(report: Report) -> list[tuple[str, str]]:
    """Return versions for the banner: harness, stacks, Python and packages; Provenance has the rest.

    A package that differs between stacks has the version of each, up to `_STACKS_NAMED` stacks.
    """
    stacks = list(dict.fromkeys(cell.stack for cell in report.cells)) or [DEFAULT]
    held = {stack: _software(report.provenance, stack) for stack in stacks}
    few = len(stacks) <= _STACKS_NAMED
    shown = {"harness": report.provenance.harness}
    if len(stacks) > 1:
        shown["stacks"] = ", ".join(stacks) if few else f"{len(stacks)} stacks"
    elif stacks != [DEFAULT]:
        shown["stack"] = stacks[0]
    for name in dict.fromkeys(name for software in held.values() for name in software):
        by_stack = {stack: software[name] for stack, software in held.items() if name in software}
        distinct = list(dict.fromkeys(by_stack.values()))
        if len(distinct) == 1 and len(by_stack) == len(stacks):
            shown[name] = distinct[0]
        elif few:
            shown[name] = ", ".join(f"{version} ({stack})" for stack, version in by_stack.items())
        else:
            shown[name] = ", ".join(distinct)
    return list(shown.items())


def _software(provenance: Provenance, stack: str) -> dict[str, str]:
    """Return Python, packages and commits of a stack."""
    facts = provenance.software_of(stack)
    packages = facts.versions
    names = packages if stack == DEFAULT else _BANNER_PACKAGES
    shown = {name: packages[name] for name in names if packages.get(name, "not installed") != "not installed"}
    return {"python": facts.python or "unknown", **shown, **facts.commits}


def _in_words(provenance: Provenance) -> dict[str, Any]:
    """Return provenance with its stacks, and what their ranks imported, as lines of text."""
    words: dict[str, Any] = to_jsonable(provenance)
    if provenance.stacks:
        words["stacks"] = {name: _stack_words(facts) for name, facts in provenance.stacks.items()}
    imports = provenance.imports_of_stacks
    words["imports_of_stacks"] = {name: [module.text for module in modules] for name, modules in imports.items()}
    return words


def _stack_words(facts: StackFacts) -> dict[str, Any]:
    words = {
        "requested": facts.requested,
        "checkouts": [f"{checkout.text()} of {checkout.repository}" for checkout in facts.checkouts],
        "commits": facts.commits,
        "container": facts.container,
        "interpreter": facts.interpreter,
        "python": facts.python,
        "packages": [f"{package.name}=={package.version}" for package in facts.packages],
        "env": [f"{name}={value}" for name, value in facts.env.items()],
        "error": facts.error,
    }
    return {name: value for name, value in words.items() if value}


def _flat_rows(value: Any, path: str = "") -> Iterator[ProvenanceRow]:
    """Yield provenance as rows; a list is one row with one line per item."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat_rows(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and all(isinstance(item, (str, int, float)) for item in value):
        text = clip("\n".join(map(str, value)), MAX_TEXT)
        yield ProvenanceRow(name=path, text=text, items=len(value) if len(value) > _MAX_ITEMS else 0)
    else:
        yield ProvenanceRow(name=path, text=clip(plain_text(value), MAX_TEXT))
