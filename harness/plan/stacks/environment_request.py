"""The environment that a stack of packages needs: what is installed, with which Python. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.stack import Stack
from harness.plan.stacks.projects import PROJECTS, UNDECLARED
from harness.plan.stacks.section import PYTHONS, distribution

_NEWER_PYTHON = ("3.12", "3.13")  # megatron-core 0.17 and later


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """An environment to build; it is also the cache key: equal requests share an environment."""

    pythons: tuple[str, ...]  # versions, in order of preference
    packages: tuple[str, ...]
    no_deps: tuple[str, ...] = ()


def environment_request(stack: Stack, torch: str = "") -> EnvironmentRequest | None:
    """The environment to build for a stack; None if it brings its own (an interpreter or a container).

    It gets torch, the packages and what they import, and nothing of the harness. `torch`: the harness's version, used
    where the stack names none, so that stacks differ only in what they name.
    """
    if stack.interpreter or stack.container:
        return None
    named = {distribution(item) for item in (*stack.packages, *stack.no_deps)}
    wanted = list(stack.packages)
    added = [need for project in named for need in UNDECLARED.get(project, ())]
    added += [need for checkout in stack.checkouts for need in PROJECTS[checkout.package].needs]
    added.append(f"torch=={torch}" if torch else "torch")
    wanted += [need for need in dict.fromkeys(added) if distribution(need) not in named]
    pythons = (stack.python,) if stack.python else _pythons_for(stack)
    return EnvironmentRequest(pythons=pythons, packages=tuple(sorted(wanted)), no_deps=tuple(sorted(stack.no_deps)))


def _pythons_for(stack: Stack) -> tuple[str, ...]:
    """megatron-core 0.17 and later, and checkouts, need Python 3.12; older wheels take any version in PYTHONS."""
    wanted = [item for item in (*stack.packages, *stack.no_deps) if distribution(item) == "megatron-core"]
    pins = [re.search(r"==\s*0\.(\d+)", item) for item in wanted]
    old = [pin for pin in pins if pin and int(pin[1]) < 17]
    return PYTHONS if old and not stack.checkouts else _NEWER_PYTHON
