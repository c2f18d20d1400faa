"""Stacks of the faults in upstream's code, as shipped matrices define them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.app.pipeline import plan_run
from harness.core.run.run_plan import RunPlan
from harness.core.stack import DEFAULT, Stack
from harness.infra.console import say
from harness.infra.inputs.files import matrix_path
from harness.infra.inputs.matrix_file import read_matrix
from harness.infra.stacks.interpreters import require_torch
from harness.infra.stacks.prepare import prepare
from harness.plan.faults import trainers
from harness.plan.faults.spec import FaultSpec
from harness.plan.stacks.section import is_url

STACKS = (
    trainers.STACK_OF_TRAINERS,
    trainers.STACK_OF_VERL,
    trainers.STACK_OF_NEMO_RL,
    trainers.STACK_OF_MEGATRON_RL,
    trainers.STACK_OF_UNIT_TESTS,
)


def stacks_of(names: Iterable[str]) -> list[Stack]:
    """The definitions of the named stacks."""
    wanted = set(names)
    return [read_matrix(matrix_path(matrix)).stacks[name] for matrix, name in STACKS if name in wanted]


def in_stacks(plan: RunPlan) -> RunPlan:
    """The plan with the stacks that its cells need, built unless they exist; some faults have one."""
    names = {cell.config.stack for cell in plan.expansion.cells}
    if DEFAULT in names:
        require_torch()
    stacks = stacks_of(names)
    return plan_run.in_stacks(plan, prepare(stacks, say)) if stacks else plan


def with_clones(specs: Sequence[FaultSpec]) -> list[FaultSpec]:
    """Those whose stacks' clones are there; says which are left out, and which clone they need."""
    absent = {stack.name: place for stack in stacks_of(spec.stack for spec in specs) if (place := _absent(stack))}
    for name, place in absent.items():
        left = [spec.name for spec in specs if spec.stack == name]
        say(f"left out, since no clone is at {place}: {', '.join(left)}")
    return [spec for spec in specs if spec.stack not in absent]


def _absent(stack: Stack) -> str:
    """The repository of a checkout that does not exist; empty when there is none."""
    places = (item.repository for item in stack.checkouts)
    return next((place for place in places if not is_url(place) and not Path(place).exists()), "")
