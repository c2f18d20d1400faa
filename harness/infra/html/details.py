"""What the page says of one cell: its first difference in words, the code that ran, since when, and links."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from harness.core.outcomes import Finding, Outcome, Severity
from harness.core.packing.fields import LONGEST, OFFSETS
from harness.core.stack import DEFAULT
from harness.core.text.counts import counted
from harness.infra.html.filters import value_text
from harness.infra.html.rank_picture import RankPicture, rank_picture
from harness.infra.html.run_files import Link, RunFiles
from harness.infra.inputs.reference import Entry, reference
from harness.judge.report.model import CellSince, Report, ReportCell
from harness.judge.report.stack_versions import versions

BAD = (Outcome.FAIL, Outcome.ERROR)
_OPEN_FAILURES = 8  # failing cells shown expanded
_OPEN_OF_CLASS = 2  # of them per fault class
_SQUARES = 3200  # rank squares on the page, about 350 bytes each
_CELL_SQUARES = 160  # rank squares per failing cell
_NOT_THE_CODE = ("python", "device", "attention", "packing-harness", "CPU stubs", "gloo stubs")  # not shown
_MOST_DOCUMENTS = 12  # lengths written out
_UPSTREAM = re.compile(
    r"\s*\((https://github\.com/[\w.-]+/[\w.-]+/"
    r"(?:(?:issues|pull)/\d+|commit/[0-9a-f]{7,40}|blob/[\w.-]+/[\w./-]+))\)"
)
_PAGES = {"checks.md": "check", "failures.md": "class"}  # pages whose entries a report quotes, and their anchors


@dataclass(frozen=True, kw_only=True)
class Detail:
    """A cell with a section of details."""

    cell: ReportCell
    number: str  # F1, F2 ... as in plots; K1 ... for known failures; empty for cells that pass
    first: Finding | None
    fault: str
    picture: RankPicture
    open: bool
    code: list[tuple[str, str]] = field(default_factory=list)  # (component, version) of the software under test
    since: CellSince | None = None
    runs: Mapping[str, Link] = field(default_factory=dict)  # run id -> its report, of the runs in `since`
    links: list[Link] = field(default_factory=list)  # files of the run


def details(report: Report, files: RunFiles) -> tuple[list[Detail], int]:
    """Failing cells, then known failures and unexpected passes; and the remaining budget of rank squares."""
    order = [*BAD, Outcome.XFAIL, Outcome.XPASS]
    chosen = [cell for outcome in order for cell in report.cells if cell.outcome is outcome]
    since = {item.id: item for item in report.since.cells} if report.since else {}
    budget = _SQUARES
    found: list[Detail] = []
    numbers: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    for cell in chosen:
        letter = "F" if cell.outcome in BAD else "K"
        numbers[letter] += 1
        picture = rank_picture(cell, min(budget, _CELL_SQUARES))
        budget -= picture.squares
        first = first_of(cell)
        fault = fault_of(cell)
        is_open = letter == "F" and opened[fault] < _OPEN_OF_CLASS and opened.total() < _OPEN_FAILURES
        opened[fault] += is_open
        changed = since.get(cell.id)
        runs = (changed.since_run, changed.good_run) if changed else ()
        found.append(
            Detail(
                cell=cell,
                number=f"{letter}{numbers[letter]}",
                first=first,
                fault=fault,
                picture=picture,
                open=is_open,
                code=code_of(report, cell),
                since=changed,
                runs={run: link for run in runs if (link := files.report_of(run))},
                links=files.of_cell(cell),
            )
        )
    return found, budget


def evidence(report: Report, shown: set[str], budget: int, files: RunFiles) -> list[Detail]:
    """The evidence of the other cells; a rank picture where the budget of squares allows."""
    found = []
    for cell in report.cells:
        if cell.id in shown:
            continue
        packed = any(view.cu_seqlens for view in cell.ranks)
        picture = rank_picture(cell, budget) if packed and len(cell.ranks) <= budget else RankPicture()
        budget -= picture.squares
        links = files.of_cell(cell)
        found.append(Detail(cell=cell, number="", first=None, fault="", picture=picture, open=False, links=links))
    return found


def code_of(report: Report, cell: ReportCell) -> list[tuple[str, str]]:
    """The stack of a cell with the versions that its ranks imported, and its commits."""
    stack = str(cell.axes.get("stack", DEFAULT))
    found = {name: text for name, text in versions(report.provenance, stack).items() if name not in _NOT_THE_CODE}
    return [
        ("stack", stack),
        *((name, text) for name, text in found.items() if text not in ("unknown", "not installed")),
    ]


def first_of(cell: ReportCell) -> Finding | None:
    """The finding that comes first: an error if there is one."""
    errors = [finding for finding in cell.findings if finding.severity is Severity.ERROR]
    return next(iter(errors or cell.findings), None)


def fault_of(cell: ReportCell) -> str:
    """The fault class of the cell's first finding."""
    first = first_of(cell)
    fallback = "infrastructure" if cell.outcome is Outcome.ERROR else "unclassified"
    return (first.fault_class if first else None) or fallback


def known_issue(text: str) -> tuple[str, str]:
    """A text that names an upstream issue, without its address; and the address, empty if it is none of GitHub."""
    found = _UPSTREAM.search(text)
    return (text[: found.start()] + text[found.end() :], found[1]) if found else (text, "")


def words(value: Any, finding: Finding) -> str:
    """What a measured or expected value means; empty where the value is plain enough."""
    name = str(finding.where.get("field", ""))
    if value is None and name:
        return f"no {name} at all"
    if name.startswith(OFFSETS) and _is_offsets(value):
        lengths = [b - a for a, b in itertools.pairwise(value)]
        listed = ", ".join(map(str, lengths[:_MOST_DOCUMENTS])) + (", ..." if len(lengths) > _MOST_DOCUMENTS else "")
        return f"{counted(len(lengths), 'document')} of {listed} {'slots' if 'padded' in name else 'tokens'}"
    if name in LONGEST and isinstance(value, int):
        return f"the longest document has {value} tokens"
    return ""


def ratio_words(finding: Finding) -> str:
    """How far a number is from its control, or beyond its bound; empty where the finding has none."""
    measured, bound = finding.measured, finding.bound
    if not isinstance(measured, (int, float)) or isinstance(measured, bool):
        return ""
    if isinstance(bound, Mapping) and isinstance(control := bound.get("control"), (int, float)) and control:
        return f"{measured / control:.4g} times the control, {value_text(float(control))}"
    limit = bound.get("value") if isinstance(bound, Mapping) and "unit" in bound else bound
    if isinstance(limit, float) and limit > 0 and measured > limit:
        times = float(f"{measured / limit:.3g}")
        return f"{times:,.0f} times the bound" if 1000 <= times < 1e9 else f"{times:.3g} times the bound"
    return ""


def _is_offsets(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 1
        and all(type(item) is int for item in value)
        and value[0] == 0
        and all(a <= b for a, b in itertools.pairwise(value))
    )


@dataclass(frozen=True, kw_only=True)
class Quoted:
    """An entry of the documentation, quoted in the report."""

    anchor: str
    entry: Entry


def quoted(shown: Sequence[Detail]) -> dict[str, Quoted]:
    """Entry of the documentation for each check, fault class and failure class that these cells name."""
    names = {finding.check for detail in shown for finding in detail.cell.findings}
    names |= {detail.fault for detail in shown}
    names |= {finding.fault_class for detail in shown for finding in detail.cell.findings if finding.fault_class}
    names |= {detail.cell.failure.failure_class for detail in shown if detail.cell.failure}
    entries = {name: entry for name, entry in _entries().items() if name in names}
    return {
        name: Quoted(anchor=f"{_PAGES[entry.page]}-{re.sub(r'[^A-Za-z0-9]+', '-', name)}", entry=entry)
        for name, entry in entries.items()
    }


@lru_cache(maxsize=1)
def _entries() -> dict[str, Entry]:
    """The entries of checks, fault classes and failure classes, by name."""
    sections = ("Checks", "Wrong results", "Incomplete cells")
    return {entry.name: entry for entry in reference() if entry.page in _PAGES and entry.section in sections}
