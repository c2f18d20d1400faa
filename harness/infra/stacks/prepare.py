"""Prepares the stacks of a matrix, so that agents can be started in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.stack import ModuleHome, ReadyStack, Stack
from harness.core.upstream import why_unsupported
from harness.infra.stacks import build as stack_build
from harness.infra.stacks import checkout as stack_checkout
from harness.infra.stacks import interpreters
from harness.infra.stacks.build import Say
from harness.infra.stacks.bytecode import compile_imports
from harness.infra.stacks.interpreters import Interpreter
from harness.plan.stacks.environment_request import EnvironmentRequest, environment_request
from harness.plan.stacks.projects import PROJECTS
from harness.plan.stacks.recipes import recipes_for


def prepare(stacks: Iterable[Stack], say: Say, *, once: bool = False, user: str = "") -> dict[str, ReadyStack]:
    """Build every stack that does not exist yet. A stack that cannot be built has the reason in `error`.

    `once`: worktrees are imported only once, so compiling them ahead would cost more than it saves.
    `user`: who releases the worktrees later (worktree_users.release); empty to keep them.

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
    """Which recipes have the packages that the stack asks for."""
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
    named = {item.package: item for item in stack.checkouts}
    if wrong := [why for item in stack.checkouts if (why := stack_checkout.why_other(item))]:
        raise InfrastructureError(wrong[0])
    commits = {name: stack_checkout.commit_of(item, fetch=True) for name, item in named.items()}
    reverted = {name: stack_checkout.reverted_of(item, commits[name]) for name, item in named.items()}
    worktrees = {
        name: stack_checkout.make(item, commits[name], say, reverted[name], user) for name, item in named.items()
    }
    in_place = [name for name, item in named.items() if not item.ref]
    commits = {name: stack_checkout.code_at(item, commits[name], worktrees[name]) for name, item in named.items()}
    if stack.container:
        return ready_stack(stack, "python3", worktrees, commits, reverted)
    request = environment_request(stack, torch_version())
    if request is None:
        found = interpreters.ask(shutil.which(stack.interpreter) or stack.interpreter)
        homes = _homes_of(found)
    else:
        found = stack_build.build(request, say)
        homes = (ModuleHome(prefix="", folders=(found.prefix,)),)
    for name, item in named.items():
        if item.setup:
            stack_checkout.set_up(item, worktrees[name], found.executable, say)
    checkouts = ready_stack(stack, found.executable, worktrees, commits, reverted)
    ready = replace(
        checkouts,
        homes=(*checkouts.homes, *homes),
        python_version=found.version,
        packages=dict(sorted(found.packages.items())),
        error=_why_unusable(found, {home.prefix: Path(home.folders[0]) for home in checkouts.homes}),
    )
    if ready.error:
        say(f"stack {stack.name} cannot be used: {ready.error}")
    elif request is not None and not in_place:
        compile_imports(ready, Path(found.prefix), once)
    return ready


def ready_stack(
    stack: Stack,
    python: str,
    worktrees: dict[str, Path],
    commits: dict[str, str],
    reverted: dict[str, tuple[str, ...]],
) -> ReadyStack:
    """A stack whose interpreter and worktrees are ready, without the contents of its environment."""
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
    """One sentence for each working tree whose code has changed since the run began.

    Only working trees used in place can change: a commit gets its own worktree, and an environment is made once.
    """
    found = []
    for stack in stacks.values():
        for item in stack.requested.checkouts:
            before = stack.commits.get(item.package, "")
            if item.ref or not before:
                continue
            place = Path(item.repository)
            now = stack_checkout.code_at(item, stack_checkout.commit_of(item, fetch=False), place)
            if now != before:
                found.append(f"stack {stack.requested.name}: {item.package} in {place} changed from {before} to {now}")
    return found


def _paths(worktrees: dict[str, Path]) -> tuple[str, ...]:
    """The checkouts' folders on the module search path, the upper layer first."""
    return tuple(
        str(tree / folder) if folder else str(tree)
        for project, tree in worktrees.items()
        for folder in PROJECTS[project].folders
    )


def _homes_of(found: Interpreter) -> tuple[ModuleHome, ...]:
    """Where an existing environment finds the modules: among its packages, or by an editable install."""
    named = tuple(ModuleHome(prefix=name, folders=(str(Path(file).parent),)) for name, file in found.modules.items())
    return (*named, ModuleHome(prefix="", folders=(found.prefix,)))


def _why_unusable(found: Interpreter, checked_out: Mapping[str, Path]) -> str:
    """Why the probe cannot run in an environment; empty when it can. `checked_out`: module -> its checkout."""
    release = tuple(int(part) for part in found.version.split(".")[:2])
    if release < interpreters.OLDEST_PYTHON:
        needed = ".".join(map(str, interpreters.OLDEST_PYTHON))
        return f"{found.executable} is Python {found.version}, and the probe needs {needed} or newer"
    for name in ("torch", "megatron.core"):
        if name not in found.modules and name not in checked_out:
            return f"{found.executable} has no {name}; add it to `packages`, or use an interpreter that has it"
    if "megatron.core" in checked_out:
        return why_unsupported(checked_out["megatron.core"] / "megatron" / "core")
    return why_unsupported(Path(found.modules["megatron.core"]).parent)


def torch_version() -> str:
    """The version of torch in the harness's environment, without its build tag; empty when there is none."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return ""
