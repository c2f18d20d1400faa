"""What all pages share: marks, values as text, links to files of runs; templates, style sheet, script, and the policy.

The policy allows no other script or style than the page's own."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from harness.core.errors import InputError
from harness.core.outcomes import Finding, Outcome
from harness.core.run.report import ChangeKind, ReportCell
from harness.core.run.run_dir import AttemptDir, RunDir
from harness.core.serialization import to_jsonable
from harness.core.text import clip, counted, duration
from harness.infra.files import exists

# outcome -> (symbol, word); both are shown, so that the meaning never depends on colour alone
OUTCOME_MARKS = {
    Outcome.PASS: ("✓", "pass"),
    Outcome.FAIL: ("✕", "fail"),
    Outcome.XFAIL: ("✕", "known failure"),
    Outcome.XPASS: ("✓", "unexpected pass"),
    Outcome.REJECTED: ("–", "rejected"),  # noqa: RUF001 - a dash, on purpose
    Outcome.ERROR: ("!", "error"),
    Outcome.FLAKY: ("↻", "flaky"),
    Outcome.NOT_RUN: ("○", "not run"),
}
# change between two runs -> CSS class of the outcome whose colour it has
CHANGE_CLASSES = {
    ChangeKind.NEWLY_FAILING: "o-FAIL",
    ChangeKind.UNJUDGED: "o-FAIL",
    ChangeKind.STILL_FAILING: "o-FAIL",
    ChangeKind.UNDECIDED: "o-ERROR",
    ChangeKind.FLAKY: "o-FLAKY",
    ChangeKind.KNOWN_FAILURE: "o-XFAIL",
    ChangeKind.NO_LONGER_RUN: "o-REJECTED",
    ChangeKind.FIXED: "o-PASS",
    ChangeKind.NEW: "o-REJECTED",
    ChangeKind.GONE: "o-REJECTED",
    ChangeKind.UNCHANGED: "o-PASS",
}
MAX_TEXT = 4000  # characters of one message or value
_MAX_TRACEBACK = 6000  # the last characters of one traceback
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
_OTHERS = {"boundaries": "at"}
_REACH = ("places", "ranks", "stages", "layers", "legs")
_TEMPLATES = Path(__file__).parent / "templates"


def anchor(cell_id: str) -> str:
    """Return the fragment identifier of a cell's details."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", cell_id)
    return f"cell-{name}" if len(name) < 200 else f"cell-{hashlib.sha256(name.encode()).hexdigest()}"


def is_control(cell: ReportCell) -> bool:
    """Return whether the cell is a control, with which others are compared."""
    return cell.role == "control" or cell.control is None


def place_words(where: Mapping[str, Any]) -> list[str]:
    """Return the location of a finding as text, outermost first: ["stage 1", "tp 1", "layer 3"]."""
    known = [f"{word} {where[key]}" for key, word in _PLACES.items() if where.get(key) is not None]
    rest = [key for key in where if key not in _PLACES and key not in _REACH and where[key] is not None]
    return known + [f"{_OTHERS.get(key, key.replace('_', ' '))} {_listed(where[key])}" for key in rest]


def _listed(value: Any) -> str:
    """Return a list of names as text instead of JSON."""
    names = isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
    return clip(", ".join(value), 600) if names else value_text(value)


def reach_words(finding: Finding) -> str:
    """Return the extent of a fault, e.g. "12 places; ranks 2, 3; stages 1".

    Empty for a single place, and if the message says it.
    """
    where = finding.where
    if not isinstance(where.get("places"), int) or where["places"] < 2 or "places" not in finding.unsaid:
        return ""
    lists = [f"{key} {', '.join(map(str, where[key][:16]))}" for key in _REACH[1:] if where.get(key)]
    return "; ".join([f"{where['places']} places", *lists])


def value_text(value: Any) -> str:
    """Return a measured value or a bound as short text."""
    if isinstance(value, Mapping) and "value" in value:
        rest = [f"{key} {value_text(part)}" for key, part in value.items() if key not in ("value", "unit", "origin")]
        unit = [str(value["unit"])] if value.get("unit") else []
        return " ".join([value_text(value["value"]), *unit]) + (f" ({', '.join(rest)})" if rest else "")
    if value is None:
        return "none"
    if isinstance(value, float):
        return (
            f"{value:.6g}" if math.isfinite(value) else {"inf": "infinity", "-inf": "-infinity"}.get(repr(value), "NaN")
        )
    return clip(plain_text(value), 600)


def plain_text(value: Any) -> str:
    """Return a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(to_jsonable(value), ensure_ascii=False)


def has_values(finding: Finding) -> bool:
    """Return whether a finding compares values; with a bound, None is an observed value."""
    return finding.measured is not None or finding.bound is not None


def bound_origin(finding: Finding) -> str:
    """Return the origin of a finding's bound; '' when unknown."""
    return str(finding.bound["origin"]) if isinstance(finding.bound, Mapping) and "origin" in finding.bound else ""


def clipped(text: str | None, limit: int = MAX_TEXT) -> str:
    """Clip text in a template (filter `clip`); '' for None, which is NULL of the history."""
    return clip(text or "", limit)


def tail(text: str) -> str:
    """Return the end of a traceback, which names the cause."""
    return text if len(text) <= _MAX_TRACEBACK else f"… (the log has the beginning)\n{text[-_MAX_TRACEBACK:]}"


def seconds(value: float | None) -> str:
    """Return e.g. "12.3 s"; a dash for a time that is not known."""
    if value is None or not math.isfinite(value):
        return "–"  # noqa: RUF001
    return f"{value:.1f} s" if value < 120 else duration(value)


def rate(value: float | None) -> str:
    """Return e.g. "1,234"; a dash for a rate that is not known."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.0f}"  # noqa: RUF001


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link with its text."""

    text: str
    href: str  # relative to the page, with "/" and percent-encoding: valid in a file system and on a web server


def link_from(folder: Path, text: str, target: Path) -> Link | None:
    """Return a relative link from a page in `folder` to a file anywhere; None if there is no such file."""
    if not exists(target):
        return None
    return Link(text=text, href=quote(Path(os.path.relpath(target, folder)).as_posix()))


@dataclass(frozen=True)
class RunFiles:
    """Links from a page in a run directory; none without a directory, as for a report that is rendered alone."""

    root: Path | None = None
    up: str = ""  # from the page to the run directory

    def link(self, text: str, path: str) -> Link | None:
        """Return the link to a file of the run, or of the folder above it; None if the path leads elsewhere."""
        plain = PurePosixPath(path)
        outside = plain.is_absolute() or ".." in plain.parts[1:]
        if self.root is None or outside or not exists(self.root / path):
            return None
        return Link(text=text, href=self.up + quote(path))

    def of_cell(self, cell: ReportCell) -> list[Link]:
        """Return log and record of one rank, see `_rank_of`, and the other files of the newest attempt."""
        if self.root is None:
            return []
        try:
            attempt = AttemptDir(RunDir(self.root).attempt(cell.id, cell.attempts).root.relative_to(self.root))
        except InputError:  # an id that no file can have
            return []
        rank = _rank_of(cell)
        folder = attempt.root.as_posix()
        links = [
            self.link(f"log of rank {rank}", cell.failure.log if cell.failure else attempt.log(rank).as_posix()),
            self.link("all logs", f"{folder}/log/"),
            self.link(f"record of rank {rank}", attempt.record(rank).as_posix()),
            self.link("all records", f"{folder}/ranks/"),
            self.link("configuration", attempt.config.as_posix()),
            self.link("result", attempt.result.as_posix()),
            self.link("folder of the cell", f"{attempt.root.parent.as_posix()}/"),
        ]
        return [link for link in links if link]

    def of_run(self) -> list[Link]:
        """Return the run directory and its files, its comparison, the history and the index of runs."""
        names = {
            "run directory": "./",
            "report.json": "report.json",
            "matrix with all values": "matrix.resolved.yaml",
            "events": "events.jsonl",
            "comparison with an earlier run": "compare.html",
            "history": "../history.html",
            "all runs": "../index.html",
        }
        return [link for text, path in names.items() if (link := self.link(text, path))]

    def report_of(self, run_id: str) -> Link | None:
        """Return the report of another run beside this one."""
        plain = PurePosixPath(run_id).name == run_id
        return self.link(run_id, f"../{run_id}/report.html") if run_id and plain else None


def _rank_of(cell: ReportCell) -> int:
    """Return the rank whose files explain the cell: the first that failed, else the first finding's, else rank 0."""
    if cell.failure:
        return cell.failure.rank
    rank = cell.first.where.get("rank") if cell.first else None
    return rank if isinstance(rank, int) else 0


if TYPE_CHECKING:
    from harness.infra.templating import Environment


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of all pages, with escaping on."""
    from harness.infra import templating

    shared = templating.environment(_TEMPLATES, autoescape=True, finalize=templating.visible)
    shared.filters.update(clip=clipped, counted=counted, place=place_words)
    shared.globals.update(marks=OUTCOME_MARKS, change_classes=CHANGE_CLASSES)
    return shared


def render(template: str, values: dict[str, Any], *styles: str) -> str:
    """Return a page; `styles`: style sheets besides the common one. Half of a surrogate pair becomes "?"."""
    style = "".join(_shipped_text(name) for name in ("style.css", *styles))
    script = _shipped_text("page.js")
    head = {"style": style, "script": script, "policy": _policy(style, script)}
    text = environment().get_template(template).render(**head, **values)
    return text.encode("utf-8", "replace").decode("utf-8")  # no file can hold a lone surrogate of a message


def _shipped_text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return the Content Security Policy: nothing is fetched; only the page's own scripts and styles, by hash."""
    allowed = f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src '{_digest(style)}'"
    return f"{allowed}; script-src '{_digest(script)}'"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
