"""The rule that depends on the stacks of a matrix and on where cells run."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.cell.config import CellConfig
from harness.core.stack import Stack
from harness.plan.rules.rule import Own, Rule


def container_rule(stacks: Mapping[str, Stack]) -> Rule[CellConfig]:
    """For runs on this machine: the harness starts containers through Slurm only (pyxis)."""

    def concerns(own: Own) -> bool:
        return own.stack in stacks and bool(stacks[own.stack].container)

    def predicate(config: CellConfig) -> str | None:
        stack = stacks[config.stack]
        return f"stack {stack.name} is container {stack.container}, and cells run on this machine; use --cluster"

    return Rule("stack.container", "harness: containers are started through Slurm (pyxis)", predicate, concerns)
