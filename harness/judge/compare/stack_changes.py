"""What differs between the software under test of two runs: versions, commits, interpreter, devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from harness.core.stack import DEFAULT, StackFacts
from harness.core.text import counted
from harness.judge.report.stack_versions import facts_of, imported_by

Facts = Mapping[str, str]  # name of a package, project or other fact -> version, commit or value
_HASH = re.compile(r"[0-9a-f]{40}")
_SHOWN_HASH = 10


class Moved(NamedTuple):
    """Commits added and removed from one commit to another."""

    added: int
    removed: int

    @property
    def text(self) -> str:
        if self.added and self.removed:
            return f"{counted(self.added, 'commit')} added, {self.removed} removed"
        return f"back by {counted(self.removed, 'commit')}" if self.removed else counted(self.added, "commit")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One fact of a stack that changed. None: the stack did not have it."""

    what: str
    before: str | None
    after: str | None
    commits: str = ""  # number between the two, if the checkout's repository is available

    @property
    def is_move(self) -> bool:
        """Whether both are full commit hashes."""
        return all(_HASH.fullmatch(value or "") for value in (self.before, self.after))

    @property
    def text(self) -> str:
        """E.g. "torch 2.9.0 -> 2.9.1", "megatron-lm 5e4fc931ba..d30e165203, 312 commits"."""
        if self.before is None or self.after is None:
            return f"{self.what} {self.after} added" if self.before is None else f"{self.what} {self.before} removed"
        if self.is_move:
            ends = f"{self.what} {self.before[:_SHOWN_HASH]}..{self.after[:_SHOWN_HASH]}"
            return f"{ends}, {self.commits}" if self.commits else ends
        return f"{self.what} {self.before} -> {self.after}"


Counts = Mapping[tuple[str, str], Moved]  # (commit before, commit after) -> commits between them


def stack_facts(provenance: Mapping[str, Any], stack: str) -> dict[str, str]:
    """The facts of a stack from a report's provenance; commits first."""
    if stack == DEFAULT:
        packages = provenance.get("packages", {}).items()
        facts = {str(name): str(version) for name, version in packages if version != "not installed"}
        return facts | ({"python": str(provenance["python"])} if provenance.get("python") else {})
    known = facts_of(provenance, stack) or StackFacts()
    facts = dict(known.commits)
    facts |= {f"{item.project} without": ", ".join(item.reverted) for item in known.checkouts if item.reverted}
    facts |= known.versions
    if not known.packages:  # a container: only what ranks imported is known
        facts |= {f"imported {item.name}": item.version for item in imported_by(provenance, stack)}
    facts |= {f"variable {name}": value for name, value in known.env.items()}
    named = {"python": known.python, "container": known.container}
    return facts | {name: value for name, value in named.items() if value}


def differences(before: Facts, after: Facts) -> list[Difference]:
    """Commits first, then in the order of the facts."""
    found = [
        Difference(what=name, before=before.get(name), after=after.get(name))
        for name in dict.fromkeys([*after, *before])
        if before.get(name) != after.get(name)
    ]
    return sorted(found, key=lambda item: not item.is_move)


def with_counts(items: Iterable[Difference], counts: Counts) -> list[Difference]:
    """The differences with the number of commits between, where known."""
    moved = ((item, counts.get((item.before or "", item.after or ""))) for item in items)
    return [replace(item, commits=between.text) if between else item for item, between in moved]


def differences_text(items: Iterable[Difference], most: int = 6) -> str:
    """Several differences on one line; empty for none."""
    texts = [item.text for item in items]
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])
