"""Prepares the stacks of a matrix, so that agents can be started in them; forecasts that for `harness plan`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from harness.core.errors import HarnessError, InfrastructureError, InputError, Problem
from harness.core.stack import Checkout, ModuleHome, ReadyStack, Stack
from harness.core.upstream import why_unsupported
from harness.launch.stacks import build as stack_build
from harness.launch.stacks import checkout as stack_checkout
from harness.launch.stacks import interpreters
from harness.launch.stacks.build import Say
from harness.launch.stacks.interpreters import Interpreter
from harness.launch.stacks.node_code import compile_imports
from harness.matrix.stacks.recipes import recipes_for
from harness.matrix.stacks.section import EnvironmentRequest, distribution, environment_request
from harness.upstreams.table import PROJECTS

State = Literal["ready", "to build", "unavailable"]
READY: State = "ready"
TO_BUILD: State = "to build"
UNAVAILABLE: State = "unavailable"


def prepare(stacks: Iterable[Stack], say: Say, *, once: bool = False, user: str = "") -> dict[str, ReadyStack]:
    """Build every stack that does not exist yet. A stack that cannot be built has the reason in `error`.

    `once`: worktrees are imported only once, so compiling them ahead would cost more than it saves.
    `user`: who releases the worktrees later (release_worktrees); empty to keep them.

    InputError, before anything is built, for errors in the matrix: a repository or ref that does not exist, a commit
    that cannot be reverted; and when uv is missing. Problems are keyed stacks.<name>.
    """
    stacks = list(stacks)
    _check(stacks)
    ready = {}
    for stack in stacks:
        try:
            ready[stack.name] = _prepare(stack, say, once, user)
        except InfrastructureError as error:
            why = f"{error}{_tested(stack)}"
            say(f"stack {stack.name} cannot be built: {why}")
            ready[stack.name] = ReadyStack(requested=stack, error=why)
    return ready


def _tested(stack: Stack) -> str:
    """Return which recipes have the packages that the stack asks for."""
    names = recipes_for((*stack.packages, *stack.no_deps))
    return f"\nstacks that are known to work: {', '.join(names)} (`harness explain {names[-1]}`)" if names else ""


def _check(stacks: Iterable[Stack]) -> None:
    problems: list[Problem] = []
    for stack in stacks:
        try:
            for checkout in stack.checkouts:
                stack_checkout.renew(checkout)
                stack_checkout.reverted_of(checkout, stack_checkout.commit_of(checkout, fetch=True))
            request = environment_request(stack, torch_version())
            if request is not None and not stack_build.is_built(_place_of(request)):
                stack_build.find_uv()
        except InputError as error:
            problems += [replace(problem, key=f"stacks.{stack.name}") for problem in error.problems]
        except InfrastructureError:
            pass  # reported when the stack is prepared
    if problems:
        raise InputError(problems)


def _place_of(request: EnvironmentRequest) -> Path:
    return stack_build.place_of(request, interpreters.find(request.pythons)[1])


def _prepare(stack: Stack, say: Say, once: bool, user: str) -> ReadyStack:
    named = {checkout.package: checkout for checkout in stack.checkouts}
    if wrong := [why for checkout in stack.checkouts if (why := stack_checkout.why_other(checkout))]:
        raise InfrastructureError(wrong[0])
    commits = {name: stack_checkout.commit_of(checkout, fetch=True) for name, checkout in named.items()}
    reverted = {name: stack_checkout.reverted_of(checkout, commits[name]) for name, checkout in named.items()}
    worktrees = {
        name: stack_checkout.make(checkout, commits[name], say, reverted[name], user)
        for name, checkout in named.items()
    }
    in_place = [name for name, checkout in named.items() if not checkout.ref]
    commits = {
        name: stack_checkout.code_at(checkout, commits[name], worktrees[name]) for name, checkout in named.items()
    }
    if stack.container:
        return ready_stack(stack, "python3", worktrees, commits, reverted)
    request = environment_request(stack, torch_version())
    if request is None:
        interpreter = interpreters.ask(shutil.which(stack.interpreter) or stack.interpreter)
        homes = _homes_of(interpreter)
    else:
        interpreter = stack_build.build(request, say)
        homes = (ModuleHome(prefix="", folders=(interpreter.prefix,)),)
    for name, checkout in named.items():
        if checkout.setup:
            stack_checkout.set_up(checkout, worktrees[name], interpreter.executable, say)
    checkouts = ready_stack(stack, interpreter.executable, worktrees, commits, reverted)
    ready = replace(
        checkouts,
        homes=(*checkouts.homes, *homes),
        python_version=interpreter.version,
        packages=dict(sorted(interpreter.packages.items())),
        error=_why_unusable(interpreter, {home.prefix: Path(home.folders[0]) for home in checkouts.homes}),
    )
    if ready.error:
        say(f"stack {stack.name} cannot be used: {ready.error}")
    elif request is not None and not in_place:
        compile_imports(ready, Path(interpreter.prefix), once)
    return ready


def ready_stack(
    stack: Stack,
    python: str,
    worktrees: dict[str, Path],
    commits: dict[str, str],
    reverted: dict[str, tuple[str, ...]],
) -> ReadyStack:
    """Return a stack whose interpreter and worktrees are ready, without the contents of its environment."""
    homes = [
        ModuleHome(prefix=name, folders=(str(tree),))
        for project, tree in worktrees.items()
        for name in PROJECTS[project].modules
    ]
    return ReadyStack(
        requested=stack,
        python=python,
        paths=_paths(worktrees),
        homes=tuple(homes),
        commits=commits,
        reverted={name: hashes for name, hashes in reverted.items() if hashes},
    )


def moved_since(stacks: Mapping[str, ReadyStack]) -> list[str]:
    """Return one sentence for each working tree whose code has changed since the run began.

    Only working trees used in place can change: a commit gets its own worktree, and an environment is made once.
    """
    sentences = []
    for stack in stacks.values():
        for checkout in stack.requested.checkouts:
            before = stack.commits.get(checkout.package, "")
            if checkout.ref or not before:
                continue
            place = Path(checkout.repository)
            now = stack_checkout.code_at(checkout, stack_checkout.commit_of(checkout, fetch=False), place)
            if now != before:
                sentences.append(
                    f"stack {stack.requested.name}: {checkout.package} in {place} changed from {before} to {now}"
                )
    return sentences


def _paths(worktrees: dict[str, Path]) -> tuple[str, ...]:
    """Return the checkouts' folders on the module search path, the upper layer first."""
    return tuple(
        str(tree / folder) if folder else str(tree)
        for project, tree in worktrees.items()
        for folder in PROJECTS[project].folders
    )


def _homes_of(interpreter: Interpreter) -> tuple[ModuleHome, ...]:
    """Return where an existing environment finds the modules: among its packages, or by an editable install."""
    named = tuple(
        ModuleHome(prefix=name, folders=(str(Path(file).parent),)) for name, file in interpreter.modules.items()
    )
    return (*named, ModuleHome(prefix="", folders=(interpreter.prefix,)))


def _why_unusable(interpreter: Interpreter, checked_out: Mapping[str, Path]) -> str:
    """Return why the probe cannot run in an environment; empty when it can. `checked_out`: module -> its checkout."""
    release = tuple(int(part) for part in interpreter.version.split(".")[:2])
    if release < interpreters.OLDEST_PYTHON:
        oldest = ".".join(map(str, interpreters.OLDEST_PYTHON))
        return f"{interpreter.executable} is Python {interpreter.version}, and the probe needs {oldest} or newer"
    for name in ("torch", "megatron.core"):
        if name not in interpreter.modules and name not in checked_out:
            return f"{interpreter.executable} has no {name}; add it to `packages`, or use an interpreter that has it"
    if "megatron.core" in checked_out:
        return why_unsupported(checked_out["megatron.core"] / "megatron" / "core")
    return why_unsupported(Path(interpreter.modules["megatron.core"]).parent)


def torch_version() -> str:
    """Return the version of torch in the harness's environment, without its build tag; empty when there is none."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return ""


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
    """What would be made for a stack, as far as that is known without making it."""

    stack: str
    parts: tuple[Part, ...]
    ready: ReadyStack | None = None  # as it would be prepared; None when that cannot be known yet

    def lines(self) -> list[str]:
        """Return one line per part; for a cached environment also the installed versions of its requirements."""
        lines = []
        for part in self.parts:
            lines.append(f"{self.stack}: {part.what}, {part.state}: {part.why or part.where}")
            named = {distribution(requirement) for requirement in part.requested}
            listed = [f"{name}=={number}" for name, number in part.packages.items() if distribution(name) in named]
            unlisted = len(part.packages) - len(listed)
            lines += [f"  has {', '.join(listed)}" + (f", and {unlisted} more" if unlisted else "")] if listed else []
        return lines


def forecasts(stacks: Iterable[Stack]) -> list[Forecast]:
    """Return the forecast of each stack; nothing is built or fetched."""
    return [_forecast(stack) for stack in stacks]


def _forecast(stack: Stack) -> Forecast:
    checkouts = {checkout.package: _checkout_part(checkout) for checkout in stack.checkouts}
    parts = [part for part, _, _ in checkouts.values()]
    commits = {package: commit for package, (_, commit, _) in checkouts.items() if commit}
    reverted = {package: hashes for package, (_, _, hashes) in checkouts.items()}
    request = environment_request(stack, torch_version())
    if stack.container:
        base, python = Part(what=f"container {stack.container}", where="the cluster", state=READY), "python3"
    elif request is None:
        base, python = _interpreter_part(stack.interpreter)
    else:
        base, python = _environment_part(request)
    parts.append(base)
    is_known = python and len(commits) == len(checkouts)
    worktrees = {
        checkout.package: stack_checkout.place_of(checkout, commits[checkout.package], reverted[checkout.package])
        for checkout in stack.checkouts
        if is_known
    }
    ready = ready_stack(stack, python, worktrees, commits, reverted) if is_known else None
    return Forecast(stack=stack.name, parts=tuple(parts), ready=ready)


def _checkout_part(checkout: Checkout) -> tuple[Part, str, tuple[str, ...]]:
    """Return the part, its commit (empty if unknown before a fetch) and the commits to revert.

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


def _interpreter_part(interpreter: str) -> tuple[Part, str]:
    what = f"interpreter {interpreter}"
    try:
        ready = interpreters.ask(shutil.which(interpreter) or interpreter)
    except InfrastructureError as error:
        return Part(what=what, where="", state=UNAVAILABLE, why=str(error)), ""
    return Part(what=f"{what} (Python {ready.version})", where=ready.prefix, state=READY), ready.executable


def _environment_part(request: EnvironmentRequest) -> tuple[Part, str]:
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
        packages=_held_packages(place) if state == READY else {},
        requested=(*request.packages, *request.no_deps),
    )
    return part, str(stack_build.python_of(place))


def _held_packages(place: Path) -> dict[str, str]:
    """Return the packages of a cached environment; none when its interpreter is gone: it will be rebuilt."""
    try:
        return dict(sorted(interpreters.ask(str(stack_build.python_of(place))).packages.items()))
    except InfrastructureError:
        return {}
