"""issue.md: a failed cell as a report for the project whose code failed, readable without this harness. Pure.

It contains no secret, path, host or account of the machine that found it: see `public`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.run.provenance import Provenance
from harness.core.run.report import ReportCell
from harness.core.secrets import redacted
from harness.core.serialization import dumps
from harness.core.text import clip, counted, markdown_fence
from harness.reporting.bisection import Bisection, Change, Find, PointKind, short
from harness.reporting.render_markdown import code, text
from harness.reporting.summaries import bound_label, versions
from harness.upstreams.table import PROJECTS

_PUBLIC = ("github.com", "gitlab.com", "huggingface.co", "pytorch.org", "nvidia.com", "python.org", "arxiv.org")
_INTERNAL = r"(?:local|localdomain|internal|intern|intra|lan|corp|home|cluster|private)"
_PART = r"[\w.+@~=,%-]+"
_FOLDER = r"[\w.+@~=,%()\[\]{}#!&^-]+"
# Paths of a machine: "/data/me/my project/x", file:///data/me/x, -I/data/me/x, ~/x, ~me/x, /data/me(a)/x, //nfs/me/x.
# Only in quotes does a path have spaces. A slash after a letter is part of a relative path, which is kept.
_PATH = re.compile(
    r"(?P<quote>[\"'`])(?P<quoted>/(?:(?!(?P=quote))[^\n]){1,1000})(?=(?P=quote))"
    r"|(?P<url>\b[A-Za-z][\w+.-]{0,20}://[^\s\"'`<>]*)"
    rf"|(?<![\w/])(?P<flag>-{{1,2}}[A-Za-z][\w-]{{0,30}}?=?)(?<!PATH)(?P<flagged>/(?:{_FOLDER}/)+(?:{_PART})?)"
    rf"|(?<![\w./~-])~[\w.-]*/(?P<home>(?:{_FOLDER}/)*{_PART})"
    rf"|(?<![\w.~/-])(?P<path>/{{1,2}}(?:{_FOLDER}/+)+(?:{_PART})?)"
)
_IPV4 = re.compile(r"(?<![\w.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(:\d{1,5})?(?![\w.]*\w)")
_BEFORE_ADDRESS = re.compile(
    r"(?i)(?:\b(?:to|at|on|from|via|host|addr|address|ip|server|peer|node|client)\b\W{0,3}|[@/\[(])$"
)
_MIN_OCTET = 30  # versions of four parts begin with a smaller number
_IPV6 = re.compile(
    r"(?<![\w:.])\[?(?P<six>[\da-fA-F]{0,4}(?::[\da-fA-F]{0,4}){2,7})(?P<zone>%\w+)?(?:\]:\d{1,5}|\])?(?![\w:])"
)
_HARDWARE = re.compile(r"(?<![\w:])[\da-fA-F]{2}(?::[\da-fA-F]{2}){5}(?![\w:])")
_HOST = re.compile(rf"(?<![\w.-])(?:(?:[A-Za-z][\w-]{{0,62}}\.){{1,8}}{_INTERNAL}|ip(?:-\d{{1,3}}){{4}})(?![\w.-])")
# A matrix product is written the same way, so a host is known by its domain, a digit, or what stands around it.
_ACCOUNT = re.compile(
    r"(?<![\w.+-])(?P<user>[\w+-][\w.+-]{0,63})@(?P<host>[A-Za-z][\w-]{0,62}(?:\.[A-Za-z\d][\w-]{0,62}){0,8})"
    r"(?:(?P<path>:(?=[/~]|PATH/TO/))|(?![\w(-]))"
)
_LOGIN = re.compile(r"\b(?:ssh|scp|sftp|rsync|mosh)\b[^\n@]{0,80}$")
_DOMAIN = re.compile(rf"(?:com|org|net|edu|gov|io|ai|{_INTERNAL}|(?<=\w\w\.)[a-z]{{2}})")
_HOMES = ("home", "homes", "user", "users", "Users")
_KEPT = ("site-packages/", "dist-packages/")  # the rest of the path names a file of a package


def public(text: str, hosts: Iterable[str] = ()) -> str:
    """Return the text without secrets, paths of the machine, hosts, addresses and accounts.

    Absolute paths are cut to the file of a package or to PATH/TO/NAME; hosts, addresses and accounts become HOST and
    USER@HOST. `hosts`: further names to replace.
    """
    text = _PATH.sub(_public_match, redacted(text))
    text = _ACCOUNT.sub(_public_account, text)
    text = _IPV6.sub(_public_ipv6, _IPV4.sub(_public_ipv4, _HARDWARE.sub("HOST", text)))
    text = _HOST.sub("HOST", text)
    for host in hosts:
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", text)
    return text


def _public_account(match: re.Match[str]) -> str:
    host = match["host"]
    if _is_public(host):
        return match[0]
    domain = host.rpartition(".")[2] if "." in host else ""
    known = _DOMAIN.fullmatch(host, len(host) - len(domain)) if domain else None
    numbered = len(host) > 3 and len(match["user"]) > 1 and any(char.isdigit() for char in host)
    before = match.string[max(match.start() - 90, 0) : match.start()]
    sure = known or numbered or match["path"] or _LOGIN.search(before)
    return f"USER@HOST{match['path'] or ''}" if sure else match[0]


def _public_ipv4(match: re.Match[str]) -> str:
    parts = [int(part) for part in match.groups()[:4]]
    if max(parts) > 255 or (not parts[0] and any(parts)):
        return match[0]
    sure = match[5] or parts[0] >= _MIN_OCTET or parts[0] == 10
    return (
        "HOST" if sure or _BEFORE_ADDRESS.search(match.string[max(match.start() - 20, 0) : match.start()]) else match[0]
    )


def _public_ipv6(match: re.Match[str]) -> str:
    """Replace an address, not a time of day or a slice such as [::2] or [a::b]."""
    try:
        ipaddress.IPv6Address(match["six"])
    except ValueError:
        return match[0]
    groups = [group for group in match["six"].split(":") if group]
    sure = match["zone"] or len(groups) > 3 or any(len(group) > 2 and not group.isdigit() for group in groups)
    return "HOST" if sure else match[0]


def publish(value: Any, hosts: Iterable[str] = ()) -> Any:
    """Return JSON values or a dataclass with every text made `public`; keys are kept."""
    known = tuple(name for host in hosts for name in dict.fromkeys((host, host.split(".")[0])) if _is_host(name))
    return _each_text(value, partial(public, hosts=known))


def _each_text(value: Any, change: Any) -> Any:
    if type(value) is str:
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each_text(part, change) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_each_text(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [attribute.name for attribute in dataclasses.fields(value) if attribute.init]
        return dataclasses.replace(value, **{name: _each_text(getattr(value, name), change) for name in names})
    return value


def _is_host(name: str) -> bool:
    """Return whether a name identifies a machine; very short names are too ambiguous to replace."""
    return len(name) > 2 and name not in ("localhost", "unknown", "none")


def _is_public(host: str) -> bool:
    return any(host.lower() == name or host.lower().endswith(f".{name}") for name in _PUBLIC)


def _public_match(match: re.Match[str]) -> str:
    if match["quoted"]:
        path: str = match["quoted"]
        return match["quote"] + (_public_path(path) if "/" in path.lstrip("/") else path)
    if match["url"]:
        scheme, _, rest = match["url"].partition("://")
        if scheme.lower() == "file":
            return _public_path(rest)
        host = re.split(r"[/:?#]", rest.rpartition("@")[2] if "@" in rest.split("/")[0] else rest)[0]
        end = match["url"][len(match["url"].rstrip(").,;:]")) :]
        return match["url"] if _is_public(host) or host == "HOST" else f"{scheme}://HOST/...{end}"
    return (match["flag"] or "") + _public_path(match["flagged"] or match["home"] or match["path"])


def _public_path(path: str) -> str:
    for part in _KEPT:
        if part in path:
            return path.rpartition(part)[2]
    inside = path.find("/megatron/")
    if inside >= 0:
        return path[inside + 1 :]
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"PATH/TO/{'HOME' if folder.rpartition('/')[2] in _HOMES else name}"


_MAX_FINDINGS = 6
_MAX_VALUE = 300
_MAX_TRACEBACK = 24  # lines, of its end
_MAX_CHARACTERS = 6000
_GITHUB = re.compile(r"(?:https?://|ssh://)?(?:[\w.-]+@)?github\.com[:/](?P<name>[\w.-]+/[\w.-]+?)(?:\.git)?/?")


@dataclass(frozen=True, kw_only=True)
class Issue:
    """The input of `render_issue`."""

    cell: ReportCell  # the failed cell
    config: CellConfig
    matrix: str  # YAML of a matrix with this cell alone, with public addresses of repositories
    provenance: Provenance  # of the run that judged it
    needs: tuple[str, ...] = ()  # what the failure needs, a line each
    remotes: Mapping[str, str] = field(default_factory=dict)  # project -> URL of its git remote
    bisection: Bisection | None = None
    confirmation: str = ""  # whether the bad end passes with the found commit reverted
    script: str = ""  # a standalone reproducer, already fit to be published; empty: there is none


def render_issue(issue: Issue) -> str:
    """Return the whole file, fit to be published: without secrets, paths and hosts of the machine that found it."""
    hosts = [issue.provenance.host, *issue.provenance.hosts]
    parts = {
        name: getattr(issue, name) for name in ("cell", "matrix", "provenance", "needs", "bisection", "confirmation")
    }
    issue = replace(issue, **publish(parts, hosts))
    lines = [f"# {title(issue)}", "", *_summary(issue), *_range(issue), *_seen(issue), *_layout(issue)]
    lines += [*_versions(issue), *_reproduce(issue)]
    return "\n".join(lines) + "\n"


def title(issue: Issue) -> str:
    """Return e.g. "Sequence packing (sft): last stage without cu_seqlens, with tp 2 x pp 3, since 1a2b3c4d5e6f"."""
    return f"{headline(issue.cell, issue.config)}{_since(issue)}"


def headline(cell: ReportCell, config: CellConfig) -> str:
    """Return the title without the commit or release."""
    first = cell.errors[0]
    what = re.sub(r"^[A-Z] ", "", first.fault_class or first.check)
    what = what.partition(": ")[2] or what
    return f"Sequence packing ({config.data_path}): {text(what)}, with {_sizes(config)}"


def _since(issue: Issue) -> str:
    bisection = issue.bisection
    if bisection is None or bisection.found is None:
        return ""
    word = "fixed in" if bisection.find is Find.FIXED else "since"
    return f", {word} {short(bisection.found.name, bisection.kind)}"


def plain(value: object) -> str:
    """Return one line of plain text, with ">" escaped only near its start, where it could begin a quote."""
    shown = text(value)
    return shown[:4] + shown[4:].replace("&gt;", ">")


def github(remote: str) -> str:
    """Return the web address of a GitHub repository from its git remote; '' for any other host."""
    match = _GITHUB.fullmatch(remote.strip())
    return f"https://github.com/{match['name']}" if match else ""


def public_repository(project: str, remote: str) -> str:
    """Return the web address of a repository, or a path for the reader to fill in."""
    return github(remote) or f"PATH/TO/{PROJECTS[project].title if project in PROJECTS else project}"


def _sizes(config: CellConfig) -> str:
    layout = config.layout
    names = ("tp", "pp", "cp", "dp", "ep", "vpp")
    return " x ".join(f"{name} {getattr(layout, name)}" for name in names if getattr(layout, name) > 1) or "one rank"


def _summary(issue: Issue) -> Iterator[str]:
    first = issue.cell.errors[0]
    yield f"{plain(first.message)}."
    yield ""
    for line in issue.needs:
        yield f"- {plain(line)}"
    if issue.confirmation:
        yield f"- {plain(issue.confirmation)}"
    if issue.needs or issue.confirmation:
        yield ""


def _range(issue: Issue) -> Iterator[str]:
    """Yield the table of the commits or releases around the change."""
    bisection = issue.bisection
    if bisection is None:
        return
    yield from ("## Since when", "", "| | |", "|---|---|")
    before, after = ("last bad", "first good") if bisection.find is Find.FIXED else ("previous good", "new bad")
    if bisection.found is not None:
        for parent in bisection.found.parents:
            role = before if parent.state.endswith(before.split()[1]) else f"parent, {parent.state}"
            yield f"| {role} | {_point(issue, parent.name)} |"
        yield f"| {after} | {_change(issue, bisection.found)} |"
    else:
        for change in bisection.candidates:
            yield f"| {after}, one of | {_change(issue, change)} |"
    inside = bisection.nested
    if inside is not None:
        for change in inside.candidates:
            name = short(change.name, inside.kind)
            yield f"| change in {text(inside.project)} | {text(name)} {text(change.subject)} |"
    ends = f"{text(bisection.good.requested)} (good) to {text(bisection.bad.requested)} (bad)"
    yield f"| searched | {ends}, {len(bisection.points)} judged |"
    yield from ("", *(f"{plain(note)}" for note in bisection.notes), *([""] if bisection.notes else []))


def _change(issue: Issue, change: Change) -> str:
    who = ", ".join(part for part in (change.author, change.date) if part)
    parts = [_point(issue, change.name), text(change.subject), f"({text(who)})" if who else ""]
    return " ".join(part for part in parts if part)


def _point(issue: Issue, name: str) -> str:
    """Return a commit with its link where one is known, or a release."""
    bisection = issue.bisection
    assert bisection is not None
    web = github(issue.remotes.get(bisection.project, ""))
    if bisection.kind != PointKind.COMMIT or not web:
        return code(short(name, bisection.kind))
    return f"[{short(name, bisection.kind)}]({web}/commit/{name})"


def _seen(issue: Issue) -> Iterator[str]:
    """Yield the observed and the expected value of each finding."""
    errors = issue.cell.errors
    yield from ("## Expected and observed", "")
    yield "Expected: the packed run computes the same as its documents one by one on one rank, and every rank gets the"
    yield "packing metadata of its documents."
    yield ""
    for finding in errors[:_MAX_FINDINGS]:
        yield f"- **{finding.lane.value}, {text(finding.check)}**: {plain(finding.message)}"
        for what, value in (("known", finding.known), ("a consequence of", finding.follows_from)):
            yield from [f"  - {what}: {plain(value)}"] if value else ()
        if finding.measured is not None or finding.bound is not None:
            yield f"  - observed: {_value(finding.measured)}"
        if finding.bound is not None:
            yield f"  - {bound_label(finding)}: {_value(finding.bound)}"
        ranks = f"; ranks {', '.join(map(str, finding.where['ranks']))}" if finding.where.get("ranks") else ""
        if place := plain(finding.place + ranks):
            yield f"  - where: {place}"
    if len(errors) > _MAX_FINDINGS:
        yield f"- and {len(errors) - _MAX_FINDINGS} more findings"
    yield ""
    failure = issue.cell.failure
    if failure is not None and failure.traceback:
        end = "\n".join(failure.traceback.rstrip().splitlines()[-_MAX_TRACEBACK:])
        yield from (f"The first rank that failed, {failure.rank} ({failure.place}):", "")
        yield from (*markdown_fence(clip(end, _MAX_CHARACTERS), "text"), "")


def _value(value: Any) -> str:
    """Return a measured value, or a bound with its origin."""
    if isinstance(value, dict) and "value" in value:
        origin = f" ({plain(value['origin'])})" if value.get("origin") else ""
        return f"{code(str(value['value']))}{origin}"
    if value is None:
        return code("none")
    return code(clip(value if isinstance(value, str) else dumps(value), _MAX_VALUE))


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
    device = "No GPU is needed. " if issue.provenance.devices == ["cpu"] else ""
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
