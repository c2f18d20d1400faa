"""issue.md: a failed cell as a report for the project whose code failed, readable without this harness. Pure.

It contains no secret, path or host of the machine that found it: see public_text.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Finding, Severity
from harness.core.serialization import dumps
from harness.core.text import clip, counted, markdown_fence
from harness.judge.bisect.result import Bisection, Change, Find, PointKind, short
from harness.judge.report.model import ReportCell
from harness.judge.report.public_text import publish
from harness.judge.report.render_markdown import code, text
from harness.judge.report.stack_versions import versions
from harness.judge.report.summaries import bound_label, place_text

_NAMES = {"megatron-lm": "Megatron-LM", "megatron-bridge": "Megatron-Bridge", "skyrl": "SkyRL", "skyrl-train": "SkyRL"}
_MOST_FINDINGS = 6
_MOST_VALUE = 300
_MOST_TRACEBACK = 24  # lines, of its end
_MOST_CHARACTERS = 6000
_GITHUB = re.compile(r"(?:https?://|ssh://)?(?:[\w.-]+@)?github\.com[:/](?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?")


@dataclass(frozen=True, kw_only=True)
class Issue:
    """The input of `render_issue`."""

    cell: ReportCell  # the failed cell
    config: CellConfig
    matrix: str  # YAML of a matrix with this cell alone, with public addresses of repositories
    provenance: Mapping[str, Any]  # of the run that judged it
    needs: tuple[str, ...] = ()  # what the failure needs, a line each
    remotes: Mapping[str, str] = field(default_factory=dict)  # project -> URL of its git remote
    bisection: Bisection | None = None
    confirmation: str = ""  # whether the bad end passes with the found commit reverted
    script: str = ""  # a standalone reproducer, already fit to be published; empty: there is none


def render_issue(issue: Issue) -> str:
    """The whole file, fit to be published: without secrets, paths and hosts of the machine that found it."""
    hosts = [issue.provenance.get("host"), *(issue.provenance.get("hosts") or ())]
    parts = {
        name: getattr(issue, name) for name in ("cell", "matrix", "provenance", "needs", "bisection", "confirmation")
    }
    issue = replace(issue, **publish(parts, [str(host) for host in hosts if host]))
    lines = [f"# {title(issue)}", "", *_summary(issue), *_range(issue), *_seen(issue), *_layout(issue)]
    lines += [*_versions(issue), *_reproduce(issue)]
    return "\n".join(lines) + "\n"


def title(issue: Issue) -> str:
    """E.g. "Sequence packing (sft): last stage without cu_seqlens, with tp 2 x pp 3, since 1a2b3c4d5e6f"."""
    return f"{headline(issue.cell, issue.config)}{_since(issue)}"


def headline(cell: ReportCell, config: CellConfig) -> str:
    """The title without the commit or release."""
    first = _errors_of(cell)[0]
    what = re.sub(r"^[A-Z] ", "", first.fault_class or first.check)
    what = what.partition(": ")[2] or what
    return f"Sequence packing ({config.data_path}): {text(what)}, with {_sizes(config)}"


def _since(issue: Issue) -> str:
    found = issue.bisection
    if found is None or found.found is None:
        return ""
    word = "fixed in" if found.find is Find.FIXED else "since"
    return f", {word} {short(found.found.name, found.kind)}"


def plain(value: object) -> str:
    """One line of plain text, with ">" escaped only near its start, where it could begin a quote."""
    shown = text(value)
    return shown[:4] + shown[4:].replace("&gt;", ">")


def github(remote: str) -> str:
    """The web address of a GitHub repository from its git remote; empty for any other host."""
    match = _GITHUB.fullmatch(remote.strip())
    return f"https://github.com/{match['name']}" if match else ""


def public_repository(project: str, remote: str) -> str:
    """The web address of a repository, or a path for the reader to fill in."""
    return github(remote) or f"PATH/TO/{_NAMES.get(project, project)}"


def _errors(issue: Issue) -> list[Finding]:
    return _errors_of(issue.cell)


def _errors_of(cell: ReportCell) -> list[Finding]:
    return [finding for finding in cell.findings if finding.severity is Severity.ERROR]


def _sizes(config: CellConfig) -> str:
    layout = config.layout
    names = ("tp", "pp", "cp", "dp", "ep", "vpp")
    return " x ".join(f"{name} {getattr(layout, name)}" for name in names if getattr(layout, name) > 1) or "one rank"


def _summary(issue: Issue) -> Iterator[str]:
    first = _errors(issue)[0]
    yield f"{plain(first.message)}."
    yield ""
    for line in issue.needs:
        yield f"- {plain(line)}"
    if issue.confirmation:
        yield f"- {plain(issue.confirmation)}"
    if issue.needs or issue.confirmation:
        yield ""


def _range(issue: Issue) -> Iterator[str]:
    """The table of the commits or releases around the change."""
    found = issue.bisection
    if found is None:
        return
    yield from ("## Since when", "", "| | |", "|---|---|")
    before, after = ("last bad", "first good") if found.find is Find.FIXED else ("previous good", "new bad")
    if found.found is not None:
        for parent in found.found.parents:
            role = before if parent.state.endswith(before.split()[1]) else f"parent, {parent.state}"
            yield f"| {role} | {_point(issue, parent.name)} |"
        yield f"| {after} | {_change(issue, found.found)} |"
    else:
        for change in found.candidates:
            yield f"| {after}, one of | {_change(issue, change)} |"
    inside = found.nested
    if inside is not None:
        for change in inside.candidates:
            name = short(change.name, inside.kind)
            yield f"| change in {text(inside.project)} | {text(name)} {text(change.subject)} |"
    ends = f"{text(found.good.requested)} (good) to {text(found.bad.requested)} (bad)"
    yield f"| searched | {ends}, {len(found.points)} judged |"
    yield from ("", *(f"{plain(note)}" for note in found.notes), *([""] if found.notes else []))


def _change(issue: Issue, change: Change) -> str:
    who = ", ".join(part for part in (change.author, change.date) if part)
    parts = [_point(issue, change.name), text(change.subject), f"({text(who)})" if who else ""]
    return " ".join(part for part in parts if part)


def _point(issue: Issue, name: str) -> str:
    """A commit with its link where one is known, or a release."""
    found = issue.bisection
    assert found is not None
    web = github(issue.remotes.get(found.project, ""))
    if found.kind != PointKind.COMMIT or not web:
        return code(short(name, found.kind))
    return f"[{short(name, found.kind)}]({web}/commit/{name})"


def _seen(issue: Issue) -> Iterator[str]:
    """The observed and the expected value of each finding."""
    errors = _errors(issue)
    yield from ("## Expected and observed", "")
    yield "Expected: the packed run computes the same as its documents one by one on one rank, and every rank gets the"
    yield "packing metadata of its documents."
    yield ""
    for finding in errors[:_MOST_FINDINGS]:
        yield f"- **{finding.lane.value}, {text(finding.check)}**: {plain(finding.message)}"
        for what, value in (("known", finding.known), ("a consequence of", finding.follows_from)):
            yield from [f"  - {what}: {plain(value)}"] if value else ()
        if finding.measured is not None or finding.bound is not None:
            yield f"  - observed: {_value(finding.measured)}"
        if finding.bound is not None:
            yield f"  - {bound_label(finding)}: {_value(finding.bound)}"
        if place := _place(finding.where):
            yield f"  - where: {place}"
    if len(errors) > _MOST_FINDINGS:
        yield f"- and {len(errors) - _MOST_FINDINGS} more findings"
    yield ""
    failure = issue.cell.failure
    if failure is not None and failure.traceback:
        end = "\n".join(failure.traceback.rstrip().splitlines()[-_MOST_TRACEBACK:])
        yield from (f"The first rank that failed, {failure.rank} ({failure.place}):", "")
        yield from (*markdown_fence(clip(end, _MOST_CHARACTERS), "text"), "")


def _value(value: Any) -> str:
    """A measured value, or a bound with its origin."""
    if isinstance(value, dict) and "value" in value:
        origin = f" ({plain(value['origin'])})" if value.get("origin") else ""
        return f"{code(str(value['value']))}{origin}"
    if value is None:
        return code("none")
    return code(clip(value if isinstance(value, str) else dumps(value), _MOST_VALUE))


def _place(where: Mapping[str, Any]) -> str:
    ranks = f"; ranks {', '.join(map(str, where['ranks']))}" if where.get("ranks") else ""
    return plain(place_text(where) + ranks)


def _layout(issue: Issue) -> Iterator[str]:
    config, layout = issue.config, issue.config.layout
    documents = config.documents_of(0)
    lengths = ", ".join(str(document.original_length) for document in documents)
    masked = [document.index for document in documents if document.masked]
    notes = [f"fully masked: {masked}"] if masked else []
    notes += [f"at most {config.documents.turns} prompts and answers each"] if config.documents.turns > 1 else []
    notes += [f"at most {config.documents.images} images each"] if config.documents.images else []
    model, train = config.model, config.train
    parts = [f"HybridModel {model.pattern}"] if model.hybrid else []
    parts += [str(part) for part in (model.moe, model.mtp, model.mla, model.vision) if part is not None]
    yield from ("## Layout", "")
    yield f"{counted(layout.world_size, 'rank')}: {_in_words(config)}."
    yield ""
    rows: dict[str, object] = {
        "tensor parallel": f"{layout.tp}{', sequence parallel' if layout.sp else ''}",
        "pipeline parallel": f"{layout.pp}{f', {layout.vpp} model chunks per stage' if layout.vpp > 1 else ''}",
        "context parallel": layout.cp,
        "data parallel": layout.dp,
        **({"expert parallel": layout.ep} if layout.ep > 1 else {}),
        **({"expert tensor parallel": layout.etp} if layout.etp else {}),
        "micro-batch size": config.micro_batch_size,
        "data path": f"{config.data_path}: {config.path.code}",
        "dtype": config.dtype,
        "layers, hidden, heads, query groups": f"{model.layers}, {model.hidden}, {model.heads}, {model.kv_heads}",
        **({"model": ", ".join(parts)} if parts else {}),
        "documents per step, tokens": f"{lengths} ({'; '.join(notes)})" if notes else lengths,
        "row, tokens": train.seq_length,
        "steps": train.steps,
    }
    yield from ("| | |", "|---|---|", *(f"| {name} | {text(value)} |" for name, value in rows.items()), "")


def _in_words(config: CellConfig) -> str:
    layout = config.layout
    words = {
        "tp": "every layer split over {} tensor-parallel ranks",
        "pp": "{} pipeline stages",
        "vpp": "{} interleaved model chunks per stage",
        "cp": "every row split over {} context-parallel ranks",
        "dp": "{} data-parallel replicas",
        "ep": "experts split over {} ranks",
    }
    parts = [phrase.format(getattr(layout, name)) for name, phrase in words.items() if getattr(layout, name) > 1]
    return ", ".join(parts) or "no parallelism"


def _versions(issue: Issue) -> Iterator[str]:
    yield from ("## Versions", "", "| | |", "|---|---|")
    yield from (
        f"| {name} | {plain(value)} |" for name, value in versions(issue.provenance, issue.config.stack).items()
    )
    yield ""


def _reproduce(issue: Issue) -> Iterator[str]:
    yield from ("## Reproduce", "")
    if issue.script:
        yield from ("`reproduce.py`, alone or under torchrun; exit code 1 if it fails:", "")
        yield from (*markdown_fence(issue.script.rstrip(), "python"), "")
    yield from ("`smallest.yaml`:", "", *markdown_fence(issue.matrix.rstrip(), "yaml"), "")
    device = "No GPU is needed. " if list(issue.provenance.get("devices", ())) == ["cpu"] else ""
    yield f"{device}The harness creates the environments and checkouts that the file names. Replace"
    yield "`PATH/TO/packing-harness` by the path of its source, and any `PATH/TO/` in the file by that of your clone."
    yield ""
    yield from (
        "```sh",
        "python3 -m venv venv",
        "venv/bin/pip install 'PATH/TO/packing-harness[node]'",
        "venv/bin/harness run smallest.yaml",
        "```",
        "",
        "Exit code 1: it fails as above, and `report.html` shows what each rank received. Exit code 0: it passes.",
    )
