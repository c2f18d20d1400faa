"""What the page says of one cell: its first difference in words, the code that ran, since when, and links."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from harness.core.outcomes import Finding, Outcome
from harness.core.packing.fields import LONGEST, OFFSETS
from harness.core.run.report import CellSince, RankView, Report, ReportCell
from harness.core.text import counted, noun
from harness.inputs.reference import Entry, reference
from harness.reporting.html.page import Link, RunFiles, value_text
from harness.reporting.summaries import versions

BAD = (Outcome.FAIL, Outcome.ERROR)
_OPEN_FAILURES = 8  # failing cells shown expanded
_OPEN_OF_CLASS = 2  # of them per fault class
_SQUARES = 3200  # rank squares on the page, about 350 bytes each
_CELL_SQUARES = 160  # rank squares per failing cell
_NOT_THE_CODE = ("python", "device", "attention", "packing-harness", "CPU stubs", "gloo stubs")  # not shown
_MAX_DOCUMENTS = 12  # lengths written out
_UPSTREAM = re.compile(
    r"\s*\((https://github\.com/[\w.-]+/[\w.-]+/"
    r"(?:(?:issues|pull)/\d+|commit/[0-9a-f]{7,40}|blob/[\w.-]+/[\w./-]+))\)"
)
_PAGES = {"checks.md": "check", "failures.md": "class"}  # pages whose entries a report quotes, and their anchors
# state of a rank -> (symbol, words)
STATE_MARKS = {
    "ok": ("✓", "ok"),
    "missing": ("∅", "missing"),
    "differs": ("≠", "differs"),
    "unpacked": ("–", "unpacked"),  # noqa: RUF001
    "no-record": ("?", "no record"),
}
_MAX_STRIP = 64  # segments drawn for one cu_seqlens
_MAX_VALUES = 400  # numbers of one cu_seqlens written out


@dataclass(frozen=True, kw_only=True)
class Detail:
    """A cell with a section of details."""

    cell: ReportCell
    number: str  # F1, F2 ... as in plots; K1 ... for known failures; empty for cells that pass
    fault: str
    picture: RankPicture
    open: bool
    code: list[tuple[str, str]] = field(default_factory=list)  # (component, version) of the software under test
    since: CellSince | None = None
    runs: Mapping[str, Link] = field(default_factory=dict)  # run id -> its report, of the runs in `since`
    links: list[Link] = field(default_factory=list)  # files of the run


def details(report: Report, files: RunFiles) -> tuple[list[Detail], int]:
    """Return failing cells, then known failures and unexpected passes; and the remaining budget of rank squares."""
    order = [*BAD, Outcome.XFAIL, Outcome.XPASS]
    chosen = [cell for outcome in order for cell in report.cells if cell.outcome is outcome]
    since = {changed_cell.id: changed_cell for changed_cell in report.since.cells} if report.since else {}
    budget = _SQUARES
    shown: list[Detail] = []
    numbers: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    for cell in chosen:
        letter = "F" if cell.outcome in BAD else "K"
        numbers[letter] += 1
        picture = rank_picture(cell, min(budget, _CELL_SQUARES))
        budget -= picture.squares
        fault = fault_of(cell)
        is_open = letter == "F" and opened[fault] < _OPEN_OF_CLASS and opened.total() < _OPEN_FAILURES
        opened[fault] += is_open
        changed = since.get(cell.id)
        runs = (changed.since_run, changed.good_run) if changed else ()
        shown.append(
            Detail(
                cell=cell,
                number=f"{letter}{numbers[letter]}",
                fault=fault,
                picture=picture,
                open=is_open,
                code=code_of(report, cell),
                since=changed,
                runs={run: link for run in runs if (link := files.report_of(run))},
                links=files.of_cell(cell),
            )
        )
    return shown, budget


def evidence(report: Report, shown: set[str], budget: int, files: RunFiles) -> list[Detail]:
    """Return the evidence of the other cells; a rank picture where the budget of squares allows."""
    others = []
    for cell in report.cells:
        if cell.id in shown:
            continue
        packed = any(view.cu_seqlens for view in cell.ranks)
        picture = rank_picture(cell, budget) if packed and len(cell.ranks) <= budget else RankPicture()
        budget -= picture.squares
        links = files.of_cell(cell)
        others.append(Detail(cell=cell, number="", fault="", picture=picture, open=False, links=links))
    return others


def code_of(report: Report, cell: ReportCell) -> list[tuple[str, str]]:
    """Return the stack of a cell with the versions that its ranks imported, and its commits."""
    versions_shown = {
        name: text for name, text in versions(report.provenance, cell.stack).items() if name not in _NOT_THE_CODE
    }
    return [
        ("stack", cell.stack),
        *((name, text) for name, text in versions_shown.items() if text not in ("unknown", "not installed")),
    ]


def fault_of(cell: ReportCell) -> str:
    """Return the fault class of the cell's first finding."""
    fallback = "infrastructure" if cell.outcome is Outcome.ERROR else "unclassified"
    return (cell.first.fault_class if cell.first else None) or fallback


def known_issue(text: str) -> tuple[str, str]:
    """Return a text that names an upstream issue, without its address; and the address, '' if it is none of GitHub."""
    link = _UPSTREAM.search(text)
    return (text[: link.start()] + text[link.end() :], link[1]) if link else (text, "")


def words(value: Any, finding: Finding) -> str:
    """Return what a measured or expected value means; '' where the value is plain enough."""
    name = str(finding.where.get("field", ""))
    if value is None and name:
        return f"no {name} at all"
    if name.startswith(OFFSETS) and _is_offsets(value):
        lengths = [b - a for a, b in itertools.pairwise(value)]
        listed = ", ".join(map(str, lengths[:_MAX_DOCUMENTS])) + (", ..." if len(lengths) > _MAX_DOCUMENTS else "")
        return f"{counted(len(lengths), 'document')} of {listed} {'slots' if 'padded' in name else 'tokens'}"
    if name in LONGEST and isinstance(value, int):
        return f"the longest document has {value} tokens"
    return ""


def ratio_words(finding: Finding) -> str:
    """Return how far a number is from its control, or beyond its bound; '' where the finding has none."""
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
        and all(type(offset) is int for offset in value)
        and value[0] == 0
        and all(a <= b for a, b in itertools.pairwise(value))
    )


@dataclass(frozen=True, kw_only=True)
class Quoted:
    """An entry of the documentation, quoted in the report."""

    anchor: str
    entry: Entry


def quoted(shown: Sequence[Detail]) -> dict[str, Quoted]:
    """Return the documentation's entry for each check, fault class and failure class that these cells name."""
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
    """Return the entries of checks, fault classes and failure classes, by name."""
    sections = ("Checks", "Wrong results", "Incomplete cells")
    return {entry.name: entry for entry in reference() if entry.page in _PAGES and entry.section in sections}


@dataclass(frozen=True, kw_only=True)
class RankSquare:
    """One rank in the picture of a cell."""

    view: RankView
    symbol: str
    word: str
    letter: str  # of the value that this rank received; empty for none
    short: str
    full: str


@dataclass(frozen=True, kw_only=True)
class ReceivedValue:
    """One distinct (cu_seqlens, max_seqlen), and the number of ranks that received it."""

    letter: str
    text: str
    max_seqlen: int | None
    ranks: int
    segments: list[tuple[float, float]]  # (x, width) in percent of the row; empty if malformed or too long


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Stages by tp ranks, for one (dp, cp)."""

    title: str
    columns: list[int]
    rows: list[tuple[str, str, list[RankSquare | None]]]  # stage, its layers, squares


@dataclass(frozen=True, kw_only=True)
class RankPicture:
    """What each rank of a cell received, drawn as squares."""

    planes: list[Plane] = field(default_factory=list)
    values: list[ReceivedValue] = field(default_factory=list)
    left_out: str = ""  # a note on ranks that are not drawn
    squares: int = 0


def rank_picture(cell: ReportCell, budget: int) -> RankPicture:
    """Return the picture of one cell with at most `budget` squares; planes with bad ranks take precedence."""
    groups: dict[tuple[int, int], list[RankView]] = defaultdict(list)
    for view in cell.ranks:
        groups[view.place.dp, view.place.cp].append(view)
    ordered = sorted(groups.items(), key=lambda item: (not _is_wrong_plane(item[1]), item[0]))
    drawn: list[tuple[tuple[int, int], list[RankView]]] = []
    used = 0
    for key, views in ordered:
        if used + len(views) <= budget:
            drawn.append((key, views))
            used += len(views)
    drawn.sort(key=lambda item: item[0])
    values = _received_values(view for _, views in drawn for view in views)
    planes = [_plane(key, views, values, single=len(groups) == 1) for key, views in drawn]
    return RankPicture(
        planes=planes, values=list(values.values()), left_out=_left_out_text(ordered, drawn), squares=used
    )


def _is_wrong_plane(views: Sequence[RankView]) -> bool:
    return any(view.state not in ("ok", "unpacked") for view in views)


def _left_out_text(ordered: Sequence[Any], drawn: Sequence[Any]) -> str:
    kept = {key for key, _ in drawn}
    missing = [views for key, views in ordered if key not in kept]
    if not missing:
        return ""
    ranks, bad = sum(len(views) for views in missing), sum(_is_wrong_plane(views) for views in missing)
    state = f"{bad} of their (dp, cp) groups have ranks that are not ok" if bad else "all of them are ok"
    return f"{ranks} more ranks are omitted to keep this file small; {state}. report.json has every rank."


def _received_key(view: RankView) -> tuple[tuple[int, ...] | None, int | None] | None:
    if view.cu_seqlens is None and view.max_seqlen is None:
        return None
    return (tuple(view.cu_seqlens) if view.cu_seqlens is not None else None, view.max_seqlen)


def _received_values(views: Iterable[RankView]) -> dict[Any, ReceivedValue]:
    counts: dict[Any, int] = {}
    for view in views:
        if (key := _received_key(view)) is not None:
            counts[key] = counts.get(key, 0) + 1
    values = {}
    for index, (key, ranks) in enumerate(counts.items()):
        letter = chr(ord("A") + index) if index < 26 else f"V{index + 1}"
        values[key] = ReceivedValue(
            letter=letter, text=_full_text(key[0]), max_seqlen=key[1], ranks=ranks, segments=_segments(key[0])
        )
    return values


def _full_text(cu_seqlens: tuple[int, ...] | None) -> str:
    if cu_seqlens is None:
        return "no cu_seqlens"
    text = ", ".join(str(value) for value in cu_seqlens[:_MAX_VALUES])
    more = f", … ({len(cu_seqlens) - _MAX_VALUES} more)" if len(cu_seqlens) > _MAX_VALUES else ""
    return f"cu_seqlens [{text}{more}]"


def _short_text(cu_seqlens: list[int] | None) -> str:
    if cu_seqlens is None:
        return "no cu_seqlens"
    if len(cu_seqlens) <= 4:
        return "[" + ", ".join(str(value) for value in cu_seqlens) + "]"
    return f"[{cu_seqlens[0]}, {cu_seqlens[1]}, … {cu_seqlens[-1]}]"


def _segments(cu_seqlens: tuple[int, ...] | None) -> list[tuple[float, float]]:
    if not cu_seqlens or len(cu_seqlens) > _MAX_STRIP + 1 or cu_seqlens[-1] <= 0:
        return []
    if cu_seqlens[0] != 0 or any(b < a for a, b in itertools.pairwise(cu_seqlens)):
        return []
    total = cu_seqlens[-1]
    return [(round(100 * a / total, 2), round(100 * (b - a) / total, 2)) for a, b in itertools.pairwise(cu_seqlens)]


def _plane(key: tuple[int, int], views: list[RankView], values: dict[Any, ReceivedValue], *, single: bool) -> Plane:
    columns = sorted({view.place.tp for view in views})
    by_place = {(view.place.pp, view.place.tp): view for view in views}
    rows: list[tuple[str, str, list[RankSquare | None]]] = []
    for stage in sorted({view.place.pp for view in views}):
        stage_views = [by_place.get((stage, tp)) for tp in columns]
        layers = next((view.layers for view in stage_views if view is not None and view.layers), [])
        squares = [_square(view, values) if view is not None else None for view in stage_views]
        rows.append((f"stage {stage}", _layers_text(layers), squares))
    return Plane(title="" if single else f"dp {key[0]}, cp {key[1]}", columns=columns, rows=rows)


def _square(view: RankView, values: dict[Any, ReceivedValue]) -> RankSquare:
    symbol, word = STATE_MARKS.get(view.state, ("?", view.state))
    received = values.get(_received_key(view))
    return RankSquare(
        view=view,
        symbol=symbol,
        word=word,
        letter=received.letter if received else "",
        short=_short_text(view.cu_seqlens),
        full=received.text if received else "",
    )


def _layers_text(layers: Sequence[int]) -> str:
    """Return layer numbers as ranges: [1, 2, 5, 6] as "layers 1-2, 5-6"."""
    if not layers:
        return ""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{noun(len(layers), 'layer')} {text}"
