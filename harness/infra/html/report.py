"""report.html: one self-contained file that needs no network and no script."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.outcomes import Finding, Outcome, Severity
from harness.core.serialization import to_jsonable
from harness.core.text.escaping import clip
from harness.infra.html.views import OUTCOME_MARKS, RankPicture, anchor, is_control, outcome_grids, rank_picture
from harness.judge.report.model import Report, ReportCell
from harness.judge.report.speed_text import gpu_texts, peak_texts, share_text
from harness.judge.report.summaries import canary_counts

if TYPE_CHECKING:
    from harness.infra.templating import Environment

_TEMPLATES = Path(__file__).parent / "templates"
MAX_TEXT = 4000  # characters of one message or value
_MAX_TRACEBACK = 6000  # the last characters of one traceback
_MAX_FINDINGS = 12  # per cell
_OPEN_FAILURES = 8  # failing cells shown unfolded,
_OPEN_OF_CLASS = 2  # of each probable class of fault
_SQUARES = 3200  # rank squares on the page, about 350 bytes each
_CELL_SQUARES = 160  # and per failing cell
_DECIDED_BAD = (Outcome.FAIL, Outcome.ERROR)
_PLACES = {
    "stage": "stage",
    "tp": "tp",
    "cp": "cp",
    "dp": "dp",
    "chunk": "chunk",
    "layer": "layer",
    "step": "step",
    "micro_batch": "micro-batch",
    "document": "document",
    "token": "token",
    "parameter": "parameter",
    "field": "field",
    "rank": "rank",
    "leg": "leg",
}
_REACH = ("places", "ranks", "stages", "layers", "legs")


@dataclass(frozen=True, kw_only=True)
class Detail:
    """A cell that did not simply pass."""

    cell: ReportCell
    number: str  # F1, F2 ... as in plots; K1 ... for known failures
    first: Finding | None
    fault: str
    picture: RankPicture
    open: bool


def render_html(report: Report) -> str:
    """The report as one HTML document; the same text for the same report."""
    from harness.infra.html.curves import curve_groups  # loads matplotlib, half a second that only reports need

    details, budget = _details(report)
    failures = [detail for detail in details if detail.cell.outcome in _DECIDED_BAD]
    known = [detail for detail in details if detail.cell.outcome not in _DECIDED_BAD]
    pictures, undrawn = _other_pictures(report, {detail.cell.id for detail in details}, budget)
    text = (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            style=(_TEMPLATES / "style.css").read_text(encoding="utf-8"),
            sentence=_sentence(report),
            failures=failures,
            known=known,
            classes=_classes(failures),
            grids=outcome_grids(report),
            curves=list(curve_groups(report, {detail.cell.id: detail.number for detail in details})),
            pictures=pictures,
            undrawn=undrawn,
            timed=[(cell, ratio) for cell in report.cells for ratio in cell.throughput.ratios],
            loads=[(cell, load) for cell in report.cells for load in cell.throughput.loads],
            with_mfu=any(cell.throughput.mfu is not None for cell in report.cells),
            peaks=peak_texts(report),
            gpus=gpu_texts(report),
            canaries=canary_counts(report),
            fastest=max((cell.throughput.slots_per_s or 0.0 for cell in report.cells), default=0.0),
            detailed={detail.cell.id for detail in details},
            started=_started(report),
            versions=_versions(report),
            provenance=list(_flat(report.provenance)),
        )
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate in a message cannot be written to a file


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from harness.infra import templating

    environment = templating.environment(_TEMPLATES, autoescape=True, finalize=templating.visible)
    environment.filters.update(
        anchor=anchor,
        clip=clipped,
        place=place_words,
        reach=reach_words,
        show=show,
        seconds=_seconds,
        rate=_rate,
        share=share_text,
        tail=_tail,
    )
    environment.globals.update(
        marks=OUTCOME_MARKS, bound_of=_bound_of, is_control=is_control, max_findings=_MAX_FINDINGS
    )
    return environment


def _details(report: Report) -> tuple[list[Detail], int]:
    """Failing cells first, then known failures and other surprises; and the rank squares that are left."""
    order = [*_DECIDED_BAD, Outcome.XFAIL, Outcome.XPASS]
    chosen = [cell for outcome in order for cell in report.cells if cell.outcome is outcome]
    budget = _SQUARES
    details: list[Detail] = []
    numbers: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    for cell in chosen:
        letter = "F" if cell.outcome in _DECIDED_BAD else "K"
        numbers[letter] += 1
        picture = rank_picture(cell, min(budget, _CELL_SQUARES))
        budget -= picture.squares
        errors = [finding for finding in cell.findings if finding.severity is Severity.ERROR]
        first = next(iter(errors or cell.findings), None)
        fault = _fault_of(cell, first)
        is_open = letter == "F" and opened[fault] < _OPEN_OF_CLASS and opened.total() < _OPEN_FAILURES
        opened[fault] += is_open
        number = f"{letter}{numbers[letter]}"
        details.append(Detail(cell=cell, number=number, first=first, fault=fault, picture=picture, open=is_open))
    return details, budget


def _fault_of(cell: ReportCell, first: Finding | None) -> str:
    """The probable class of fault of a cell's first finding."""
    fallback = "infrastructure" if cell.outcome is Outcome.ERROR else "unclassified"
    return (first.fault_class if first else None) or fallback


def _other_pictures(report: Report, shown: set[str], budget: int) -> tuple[list[tuple[ReportCell, RankPicture]], int]:
    """Pictures of the packed cells without a detail block, and how many did not fit."""
    packed = [cell for cell in report.cells if cell.id not in shown and any(view.cu_seqlens for view in cell.ranks)]
    pictures: list[tuple[ReportCell, RankPicture]] = []
    for cell in packed:
        if len(cell.ranks) > budget:
            break
        picture = rank_picture(cell, budget)
        budget -= picture.squares
        pictures.append((cell, picture))
    return pictures, len(packed) - len(pictures)


def _classes(failures: Sequence[Detail]) -> list[tuple[str, list[Detail]]]:
    """Failing cells by probable class of fault, the largest class first."""
    classes: dict[str, list[Detail]] = {}
    for detail in failures:
        classes.setdefault(detail.fault, []).append(detail)
    return sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))


def _sentence(report: Report) -> str:
    """The verdict in words: how many of how many, the bad first."""
    words = {
        Outcome.FAIL: "failed",
        Outcome.ERROR: "could not be decided",
        Outcome.XPASS: "passed although the matrix expects a failure",
        Outcome.FLAKY: "passed only on a retry",
        Outcome.XFAIL: "failed as the matrix expects",
        Outcome.PASS: "passed",
        Outcome.REJECTED: "rejected by a rule",
    }
    parts = [f"{report.counts[key]} {word}" for key, word in words.items() if report.counts.get(key)]
    return ", ".join(parts) + "." if parts else "The run has no cells."


def place_words(where: Mapping[str, Any]) -> list[str]:
    """The place of a finding in words, outermost first: ["stage 1", "tp 1", "layer 3"]."""
    known = [f"{word} {where[key]}" for key, word in _PLACES.items() if where.get(key) is not None]
    rest = [key for key in where if key not in _PLACES and key not in _REACH and where[key] is not None]
    return known + [f"{key.replace('_', ' ')} {_listed(where[key])}" for key in rest]


def _listed(value: Any) -> str:
    """Names are read as a list, not as JSON."""
    names = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    return clip(", ".join(value), 600) if names else show(value)


def reach_words(where: Mapping[str, Any]) -> str:
    """How far a fault reaches beyond its first place: "12 places, ranks 2, 3, stages 1"; empty for one place."""
    if not isinstance(where.get("places"), int) or where["places"] < 2:
        return ""
    lists = [f"{key} {', '.join(map(str, where[key][:16]))}" for key in _REACH[1:] if where.get(key)]
    return "; ".join([f"{where['places']} places", *lists])


def show(value: Any) -> str:
    """A measured value or a bound as short text."""
    if isinstance(value, Mapping) and "value" in value:
        rest = [f"{key} {show(item)}" for key, item in value.items() if key not in ("value", "unit", "origin")]
        unit = [str(value["unit"])] if value.get("unit") else []
        return " ".join([show(value["value"]), *unit]) + (f" ({', '.join(rest)})" if rest else "")
    if value is None:
        return "none"
    if isinstance(value, float):
        return (
            f"{value:.6g}" if math.isfinite(value) else {"inf": "infinity", "-inf": "-infinity"}.get(repr(value), "NaN")
        )
    return clip(_plain(value), 600)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(to_jsonable(value), ensure_ascii=False)


def _bound_of(finding: Finding) -> str:
    """Where a finding's bound comes from; empty when it does not say."""
    return str(finding.bound["origin"]) if isinstance(finding.bound, Mapping) and "origin" in finding.bound else ""


def clipped(text: str, limit: int = MAX_TEXT) -> str:
    """The filter `clip` of pages."""
    return clip(text, limit)


def _tail(text: str) -> str:
    """The end of a traceback, where its cause is."""
    return text if len(text) <= _MAX_TRACEBACK else f"… (the log has the beginning)\n{text[-_MAX_TRACEBACK:]}"


def _seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"  # noqa: RUF001
    if value < 120:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _rate(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.0f}"  # noqa: RUF001


def _started(report: Report) -> str:
    """When the run started: as provenance says, else as the run id says; empty when neither does."""
    if isinstance(said := report.provenance.get("started"), str):
        return said
    stamp = re.search(r"\d{8}T?\d{6}Z?", report.run_id)
    return stamp.group() if stamp else ""


def _versions(report: Report) -> list[tuple[str, str]]:
    """Versions for the banner: harness, Python, and the packages that are there; all else stands under Provenance.

    Of the software under test those of the stack whose cell fails first, where one does.
    """
    provenance = report.provenance
    packages = provenance.get("packages")
    failing = next((cell for cell in report.cells if cell.outcome in _DECIDED_BAD), None)
    stack = str(failing.axes.get("stack", "")) if failing else ""
    facts = provenance.get("stacks", {}).get(stack)
    if facts is not None:
        held = dict(item.partition("==")[::2] for item in facts.get("packages", ()))
        own = {name: held[name] for name in ("torch", "megatron-core", "transformer-engine") if name in held}
        first = {
            "harness": provenance.get("harness", "unknown"),
            "stack": stack,
            "python": facts.get("python", "unknown"),
        }
        return [(name, str(value)) for name, value in {**first, **own, **facts.get("commits", {})}.items()]
    named = {name: provenance[name] for name in ("harness", "python") if name in provenance}
    named |= packages if isinstance(packages, Mapping) else {}
    return [(str(name), str(value)) for name, value in named.items() if value != "not installed"]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Provenance as (dotted key, text) rows; a list is one row, its items on lines of their own when they are long."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and all(isinstance(item, (str, int, float)) for item in value):
        items = [str(item) for item in value]
        yield path, clip((" " if path.endswith("command") else "\n").join(items), MAX_TEXT)
    else:
        yield path, clip(_plain(value), MAX_TEXT)
