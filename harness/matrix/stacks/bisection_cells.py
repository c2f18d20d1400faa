"""The cells of a bisection: those whose stack holds the subject, at points of the subject's history. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cell.identity import cell_id, cell_name
from harness.core.run.run_plan import PlannedCell
from harness.core.stack import DEFAULT, Stack, content_of, digest
from harness.matrix.stacks.section import distribution
from harness.upstreams.table import PROJECTS

NAME_LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is bisected: a project's repository, or the releases of a distribution."""

    name: str  # a key of PROJECTS, or a normalised distribution
    repository: str = ""  # of a project; empty for releases
    setup: str = ""  # command to run once in each worktree; empty: the stack's own

    @property
    def of_releases(self) -> bool:
        return not self.repository

    def is_in(self, stack: Stack) -> bool:
        """Return whether the stack holds the subject at a point of its history: a checkout with reverted commits does
        not.
        """
        if self.of_releases:
            return any(distribution(requirement) == self.name for requirement in (*stack.packages, *stack.no_deps))
        return any(checkout.package == self.name and not checkout.revert for checkout in stack.checkouts)

    def at(self, stack: Stack, point: str) -> Stack:
        """Return the stack with the subject at a commit or a release."""
        if self.of_releases:
            return replace(
                stack, packages=self._pinned(stack.packages, point), no_deps=self._pinned(stack.no_deps, point)
            )
        moved = (
            replace(checkout, repository=self.repository, ref=point, setup=self.setup or checkout.setup)
            if checkout.package == self.name
            else checkout
            for checkout in stack.checkouts
        )
        return replace(stack, checkouts=tuple(moved))

    def _pinned(self, requirements: Sequence[str], release: str) -> tuple[str, ...]:
        return tuple(
            f"{re.split(r'[^A-Za-z0-9._-]', requirement)[0]}=={release}"
            if distribution(requirement) == self.name
            else requirement
            for requirement in requirements
        )

    def layers(self) -> list[Mapping[str, Any]]:
        """Return the layers of a stack that holds the subject, not yet at a point of its history."""
        if self.of_releases:
            return [{"packages": [self.name]}]
        checkout = {"checkout": self.repository, "ref": "HEAD", "package": self.name}
        return [checkout, *PROJECTS[self.name].runs_on]


def for_bisection(values: Any, subject: Subject) -> Any:
    """Return the values of a matrix file without what applies only to its own stacks: xfail, may_reject and
    slower_than.

    If the file defines no stacks, all its cells get one that holds the subject.
    """
    if not isinstance(values, Mapping):
        return values
    changed = {key: value for key, value in values.items() if key not in ("xfail", "may_reject")}
    throughput = _at(changed, "checks", "throughput")
    if throughput and "slower_than" in throughput:
        without_base = {key: value for key, value in throughput.items() if key != "slower_than"}
        changed["checks"] = {**changed["checks"], "throughput": without_base}
    if not changed.get("stacks") and isinstance(changed.get("matrix"), Mapping):
        changed["stacks"] = {subject.name: subject.layers()}
        changed["matrix"] = _on_stack(changed["matrix"], subject.name)
    return changed


def _at(values: Mapping[str, Any], *path: str) -> Mapping[str, Any] | None:
    value: Any = values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _on_stack(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the `matrix:` section with every combination in one stack, those of include rows too."""
    rows = section.get("include", [])
    dimensions = {key: value for key, value in section.items() if key not in ("include", "exclude")}
    changed = {"stack": name, **section} if dimensions and "stack" not in dimensions else dict(section)
    if rows and isinstance(rows, list):
        changed["include"] = [{"stack": name, **row} if isinstance(row, Mapping) else row for row in rows]
    return changed


def without_twins(
    cells: Sequence[PlannedCell], stacks: Mapping[str, Stack], subject: Subject
) -> tuple[PlannedCell, ...]:
    """Return the cells, less those that equal an earlier one once their stacks are at the same point."""
    distinct: dict[tuple[str, str], PlannedCell] = {}
    for cell in cells:
        stack = subject.at(stacks[cell.config.stack], "")  # at no point: stacks that differ only in it are equal
        distinct.setdefault((cell_id(replace(cell.config, stack=DEFAULT)), content_of(stack)), cell)
    return tuple(distinct.values())


def named_at(stacks: Mapping[str, Stack], subject: Subject, label: str) -> dict[str, Stack]:
    """Return the stacks as NAME-`label`, by their old names.

    NAME is the subject's if there is one stack, else the old one.
    """
    renamed = {}
    for name, stack in stacks.items():
        new = (subject.name if len(stacks) == 1 else name)[: NAME_LENGTH - len(label) - 1]
        renamed[name] = replace(stack, name=f"{new}-{label}")
    return renamed


def pinned_release(text: str, package: str) -> str:
    """Return the release of a package that a file like pyproject.toml or requirements.txt pins with ==.

    Empty if none.
    """
    name = re.sub(r"[-_.]+", "[-_.]+", package)
    match = re.search(rf"(?i)(?<![\w.-]){name}(\[[^\]]*\])?\s*==\s*([0-9][\w.+!]*)", text)
    return match[2] if match else ""


def moved(cells: Sequence[PlannedCell], stacks: Mapping[str, Stack]) -> dict[str, PlannedCell]:
    """Return the cells in their new stacks, by old id.

    `stacks`: old name -> new stack. Controls move with their cells.
    """
    configs = {}
    for cell in cells:
        stack = stacks[cell.config.stack]
        configs[cell.id] = replace(cell.config, stack=stack.name, made_of=digest(stack))
    ids = {name: cell_id(config) for name, config in configs.items()}
    by_old_id: dict[str, PlannedCell] = {}
    for cell in cells:
        old, new = cell.config.stack, configs[cell.id].stack
        by_old_id[cell.id] = replace(
            cell,
            id=ids[cell.id],
            config=configs[cell.id],
            axes={**cell.axes, "stack": new},
            group=f"{cell.group.removesuffix(old)}{new}",
            control=ids[cell.control] if cell.control else None,
        )
    return by_old_id


def plain_name(cell: PlannedCell) -> str:
    """Return a cell's name without hash and stack: the same at every point."""
    return cell_name(replace(cell.config, stack=DEFAULT))
