"""report.html: one self-contained file that needs no network and no script."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.outcomes import Finding, Outcome, Severity
from harness.core.stack import DEFAULT, StackFacts
from harness.core.text.counts import counted
from harness.core.text.escaping import clip
from harness.infra.html.filters import (
    MAX_TEXT,
    bound_origin,
    clipped,
    has_values,
    place_words,
    plain_text,
    rate,
    reach_words,
    seconds,
    tail,
    value_text,
)
from harness.infra.html.marks import CHANGE_CLASSES, OUTCOME_MARKS, anchor, is_control
from harness.infra.html.outcome_grid import outcome_grids
from harness.infra.html.rank_picture import RankPicture, rank_picture
from harness.judge.report.model import Report, ReportCell
from harness.judge.report.speed_text import gpu_texts, peak_texts, share_text
from harness.judge.report.stack_versions import facts_of, imported_by
from harness.judge.report.summaries import bound_label, canary_counts

if TYPE_CHECKING:
    from harness.infra.templating import Environment

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_FINDINGS = 12  # per cell
_OPEN_FAILURES = 8  # failing cells shown expanded
_OPEN_OF_CLASS = 2  # of them per fault class
_SQUARES = 3200  # rank squares on the page, about 350 bytes each
_CELL_SQUARES = 160  # rank squares per failing cell
_PACKAGES = ("torch", "megatron-core", "transformer-engine")  # of a stack, in the banner
_STACKS_NAMED = 3  # in the banner; if there are more, only their number
_BAD = (Outcome.FAIL, Outcome.ERROR)


@dataclass(frozen=True, kw_only=True)
class Detail:
    """A cell with a section of details."""

    cell: ReportCell
    number: str  # F1, F2 ... as in plots; K1 ... for known failures
    first: Finding | None
    fault: str
    picture: RankPicture
    open: bool


def render_html(report: Report) -> str:
    """The report as one HTML document. Deterministic."""
    from harness.infra.html.curves import curve_groups  # imports matplotlib, which takes half a second

    details, budget = _details(report)
    failures = [detail for detail in details if detail.cell.outcome in _BAD]
    known = [detail for detail in details if detail.cell.outcome not in _BAD]
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
            provenance=list(_flat(_in_words(report.provenance))),
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
        counted=counted,
        place=place_words,
        reach=reach_words,
        value=value_text,
        seconds=seconds,
        rate=rate,
        share=share_text,
        tail=tail,
    )
    environment.globals.update(
        marks=OUTCOME_MARKS,
        change_classes=CHANGE_CLASSES,
        bound_label=bound_label,
        bound_origin=bound_origin,
        has_values=has_values,
        is_control=is_control,
        max_findings=_MAX_FINDINGS,
    )
    return environment


def _details(report: Report) -> tuple[list[Detail], int]:
    """Failing cells, then known failures and unexpected passes; and the remaining budget of rank squares."""
    order = [*_BAD, Outcome.XFAIL, Outcome.XPASS]
    chosen = [cell for outcome in order for cell in report.cells if cell.outcome is outcome]
    budget = _SQUARES
    details: list[Detail] = []
    numbers: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    for cell in chosen:
        letter = "F" if cell.outcome in _BAD else "K"
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
    """The fault class of the cell's first finding."""
    fallback = "infrastructure" if cell.outcome is Outcome.ERROR else "unclassified"
    return (first.fault_class if first else None) or fallback


def _other_pictures(report: Report, shown: set[str], budget: int) -> tuple[list[tuple[ReportCell, RankPicture]], int]:
    """Rank pictures of the packed cells without details, and the number of cells over the budget."""
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


def _versions(report: Report) -> list[tuple[str, str]]:
    """Versions for the banner: harness, stacks, Python and packages; Provenance has the rest.

    A package that differs between stacks has the version of each, up to `_STACKS_NAMED` stacks.
    """
    stacks = list(dict.fromkeys(str(cell.axes.get("stack", DEFAULT)) for cell in report.cells)) or [DEFAULT]
    held = {stack: _software(report.provenance, stack) for stack in stacks}
    few = len(stacks) <= _STACKS_NAMED
    found = {"harness": str(report.provenance["harness"])} if "harness" in report.provenance else {}
    if len(stacks) > 1:
        found["stacks"] = ", ".join(stacks) if few else f"{len(stacks)} stacks"
    elif stacks != [DEFAULT]:
        found["stack"] = stacks[0]
    for name in dict.fromkeys(name for software in held.values() for name in software):
        by_stack = {stack: software[name] for stack, software in held.items() if name in software}
        distinct = list(dict.fromkeys(by_stack.values()))
        if len(distinct) == 1 and len(by_stack) == len(stacks):
            found[name] = distinct[0]
        elif few:
            found[name] = ", ".join(f"{version} ({stack})" for stack, version in by_stack.items())
        else:
            found[name] = ", ".join(distinct)
    return list(found.items())


def _software(provenance: Mapping[str, Any], stack: str) -> dict[str, str]:
    """Python, packages and commits of a stack; those of the launcher's environment if it has none."""
    facts = facts_of(provenance, stack)
    if facts is not None:
        packages = facts.versions
        shown = {name: packages[name] for name in _PACKAGES if name in packages}
        software = {"python": facts.python or "unknown"} | shown | facts.commits
    else:
        installed = provenance.get("packages")
        software = {"python": provenance["python"]} if "python" in provenance else {}
        software |= installed if isinstance(installed, Mapping) else {}
    return {str(name): str(version) for name, version in software.items() if version != "not installed"}


def _in_words(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance with its stacks, and what their ranks imported, as lines of text."""
    words = dict(provenance)
    if "stacks" in words:
        stacks = {name: facts_of(provenance, name) for name in words["stacks"]}
        words["stacks"] = {name: _stack_words(facts) for name, facts in stacks.items() if facts}
    if "imports_of_stacks" in words:
        names = words["imports_of_stacks"]
        words["imports_of_stacks"] = {name: [item.text for item in imported_by(provenance, name)] for name in names}
    return words


def _stack_words(facts: StackFacts) -> dict[str, Any]:
    words = {
        "requested": facts.requested,
        "checkouts": [f"{item.text()} of {item.repository}" for item in facts.checkouts],
        "commits": facts.commits,
        "container": facts.container,
        "interpreter": facts.interpreter,
        "python": facts.python,
        "packages": [f"{item.name}=={item.version}" for item in facts.packages],
        "env": [f"{name}={value}" for name, value in facts.env.items()],
        "error": facts.error,
    }
    return {name: value for name, value in words.items() if value}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Provenance as (dotted key, text) rows; a list is one row with one line per item."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and all(isinstance(item, (str, int, float)) for item in value):
        items = [str(item) for item in value]
        yield path, clip((" " if path.endswith("command") else "\n").join(items), MAX_TEXT)
    else:
        yield path, clip(plain_text(value), MAX_TEXT)
