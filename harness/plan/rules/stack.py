"""The rule that depends on where cells run and on the stacks of a matrix."""

from __future__ import annotations

from collections.abc import Mapping

from harness.plan.rules.rule import Rule
from harness.words.cell import CellConfig
from harness.words.stack import Stack


def container_rule(stacks: Mapping[str, Stack]) -> Rule[CellConfig]:
    """For this machine: the harness starts containers through Slurm only (pyxis)."""

    def predicate(config: CellConfig) -> str | None:
        stack = stacks.get(config.stack)
        if stack is None or not stack.container:
            return None
        return f"stack {stack.name} is container {stack.container}, and cells run on this machine, not on a cluster"

    return Rule("stack.container", "harness: containers are started through Slurm (pyxis)", predicate)
