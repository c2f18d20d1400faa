"""Interleaved cells of two stacks: each block of one runs next to a block of the other, on the same machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.run.run_plan import PlannedCell
from harness.plan.matrix.problems import Problems

_KEY = ("checks", "throughput", "slower_than", "stack")


def paired_cells(cells: Sequence[PlannedCell], base: str, problems: Problems) -> list[PlannedCell]:
    """The cells; timed ones that differ only in the stack become pairs. `base` is the stack to compare with.

    A cell whose partner is rejected stays unpaired. Adds a problem unless there are two stacks, one of them the base.
    """
    stacks = list(dict.fromkeys(cell.config.stack for cell in cells))
    if base not in stacks:
        problems.add(_KEY, "no cell runs in this stack", found=repr(base), allowed=", ".join(stacks))
    elif len(stacks) != 2:
        hint = "run a matrix for each pair of stacks, or drop slower_than"
        problems.add(_KEY, f"interleaving needs two stacks, and the axis 'stack' has {len(stacks)}", hint=hint)
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        if cell.config.timing.turns:
            groups.setdefault(_pair(cell.config), []).append(cell)
    partners = {cell.id: members for members in groups.values() if len(members) == 2 for cell in members}
    return [_paired(cell, partners[cell.id], base) if cell.id in partners else _unpaired(cell) for cell in cells]


def _pair(config: CellConfig) -> str:
    """The name of a cell's pair: a hash of the cell without its stack."""
    name = cell_id(replace(config, stack=""))
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _unpaired(cell: PlannedCell) -> PlannedCell:
    return replace(cell, config=replace(cell.config, timing=replace(cell.config.timing, turns="")))


def _paired(cell: PlannedCell, members: Sequence[PlannedCell], base: str) -> PlannedCell:
    is_base = cell.config.stack == base
    timing = replace(cell.config.timing, turns=_pair(cell.config), first=is_base)
    partner = next(member.id for member in members if member.id != cell.id)
    return replace(cell, config=replace(cell.config, timing=timing), base=None if is_base else partner)
