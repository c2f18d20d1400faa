"""The banner's versions, and provenance as rows of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.core.stack import DEFAULT, StackFacts
from harness.core.text.escaping import clip
from harness.infra.html.filters import MAX_TEXT, plain_text
from harness.judge.report.model import Report
from harness.judge.report.stack_versions import facts_of, imported_by

_PACKAGES = ("torch", "megatron-core", "transformer-engine")  # of a stack, in the banner
_STACKS_NAMED = 3  # in the banner; if there are more, only their number
_MOST_ITEMS = 6  # of a list; longer ones are folded


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fact of the provenance: dotted key and text."""

    name: str
    text: str
    items: int = 0  # of a list with so many that it is folded


def provenance_rows(report: Report) -> list[Row]:
    """All facts of the provenance."""
    return list(_flat(_in_words(report.provenance)))


def banner_versions(report: Report) -> list[tuple[str, str]]:
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


def _flat(value: Any, path: str = "") -> Iterator[Row]:
    """Provenance as rows; a list is one row with one line per item."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and all(isinstance(item, (str, int, float)) for item in value):
        is_command = path.endswith("command")
        text = clip((" " if is_command else "\n").join(map(str, value)), MAX_TEXT)
        yield Row(name=path, text=text, items=len(value) if len(value) > _MOST_ITEMS and not is_command else 0)
    else:
        yield Row(name=path, text=clip(plain_text(value), MAX_TEXT))
