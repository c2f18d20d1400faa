"""Forecasts how the stacks of a matrix would be prepared here, for `harness plan` and `--dry-run`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.core.errors import HarnessError, InfrastructureError
from harness.core.stack import Checkout, ReadyStack, Stack
from harness.infra.stacks import build as stack_build
from harness.infra.stacks import checkout as stack_checkout
from harness.infra.stacks import interpreters
from harness.infra.stacks.prepare import ready_stack, torch_version
from harness.plan.stacks.environment_request import EnvironmentRequest, environment_request
from harness.plan.stacks.section import distribution

State = Literal["ready", "to build", "unavailable"]
READY: State = "ready"
TO_BUILD: State = "to build"
UNAVAILABLE: State = "unavailable"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A layer that must exist before agents can start."""

    what: str
    where: str
    state: State
    why: str = ""  # reason why it is unavailable
    packages: dict[str, str] = field(default_factory=dict)  # distribution -> version, of a cached environment
    requested: tuple[str, ...] = ()  # requirements of the environment


@dataclass(frozen=True, kw_only=True)
class Forecast:
    stack: str
    parts: tuple[Part, ...]
    ready: ReadyStack | None = None  # as it would be prepared; None when that cannot be known yet

    def lines(self) -> list[str]:
        """One line per part; for a cached environment also the installed versions of its requirements."""
        lines = []
        for part in self.parts:
            lines.append(f"{self.stack}: {part.what}, {part.state}: {part.why or part.where}")
            named = {distribution(item) for item in part.requested}
            held = [f"{name}=={number}" for name, number in part.packages.items() if distribution(name) in named]
            others = len(part.packages) - len(held)
            lines += [f"  has {', '.join(held)}" + (f", and {others} more" if others else "")] if held else []
        return lines


def forecasts(stacks: Iterable[Stack]) -> list[Forecast]:
    return [_forecast(stack) for stack in stacks]


def _forecast(stack: Stack) -> Forecast:
    checkouts = {item.package: _checkout(item) for item in stack.checkouts}
    parts = [part for part, _, _ in checkouts.values()]
    commits = {package: commit for package, (_, commit, _) in checkouts.items() if commit}
    reverted = {package: hashes for package, (_, _, hashes) in checkouts.items()}
    request = environment_request(stack, torch_version())
    if stack.container:
        base, python = Part(what=f"container {stack.container}", where="the cluster", state=READY), "python3"
    elif request is None:
        base, python = _interpreter(stack.interpreter)
    else:
        base, python = _environment(request)
    parts.append(base)
    known = python and len(commits) == len(checkouts)
    worktrees = {
        item.package: stack_checkout.place_of(item, commits[item.package], reverted[item.package])
        for item in stack.checkouts
        if known
    }
    ready = ready_stack(stack, python, worktrees, commits, reverted) if known else None
    return Forecast(stack=stack.name, parts=tuple(parts), ready=ready)


def _checkout(checkout: Checkout) -> tuple[Part, str, tuple[str, ...]]:
    """The part, its commit (empty if unknown before a fetch) and the commits to revert.

    Whether a revert conflicts is known only after trying it.
    """
    what = f"{stack_checkout.named(checkout)} of {checkout.repository}"
    mirror = stack_checkout.repository_place(checkout)
    if mirror is not None and not mirror.exists():
        return Part(what=f"{what}, a clone and its worktree", where=str(mirror), state=TO_BUILD), "", ()
    try:
        commit = stack_checkout.commit_of(checkout, fetch=False)
        reverted = stack_checkout.reverted_of(checkout, commit)
    except HarnessError as error:
        if mirror is not None:  # a fetch may bring it
            return Part(what=f"{what}, fetched and its worktree", where=str(mirror), state=TO_BUILD), "", ()
        return Part(what=what, where="", state=UNAVAILABLE, why=str(error)), "", ()
    if why := stack_checkout.why_other(checkout):
        return Part(what=what, where="", state=UNAVAILABLE, why=why), "", ()
    place = stack_checkout.place_of(checkout, commit, reverted)
    state = READY if stack_checkout.is_made(place) else TO_BUILD
    return Part(what=f"{what} ({commit[:12]})", where=str(place), state=state), commit, reverted


def _interpreter(interpreter: str) -> tuple[Part, str]:
    what = f"interpreter {interpreter}"
    try:
        found = interpreters.ask(shutil.which(interpreter) or interpreter)
    except InfrastructureError as error:
        return Part(what=what, where="", state=UNAVAILABLE, why=str(error)), ""
    return Part(what=f"{what} (Python {found.version})", where=found.prefix, state=READY), found.executable


def _environment(request: EnvironmentRequest) -> tuple[Part, str]:
    packages = ", ".join((*request.packages, *request.no_deps))
    try:
        _, version = interpreters.find(request.pythons)
        place = stack_build.place_of(request, version)
        state: State = READY if stack_build.is_built(place) else TO_BUILD
        if state == TO_BUILD:
            stack_build.find_uv()
    except HarnessError as error:
        return Part(what=f"environment of {packages}", where="", state=UNAVAILABLE, why=str(error)), ""
    part = Part(
        what=f"environment of {packages} with Python {version}",
        where=str(place),
        state=state,
        packages=_held(place) if state == READY else {},
        requested=(*request.packages, *request.no_deps),
    )
    return part, str(stack_build.python_of(place))


def _held(place: Path) -> dict[str, str]:
    """The packages of a cached environment; none when its interpreter is gone: it will be rebuilt."""
    try:
        return dict(sorted(interpreters.ask(str(stack_build.python_of(place))).packages.items()))
    except InfrastructureError:
        return {}
