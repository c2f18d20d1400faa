"""Which cells run together, and in what order."""

from __future__ import annotations

from harness.words.run_plan import Allocation, Expansion


def plan_allocations(expansion: Expansion) -> tuple[Allocation, ...]:
    """One allocation on this machine with all cells: references first, then the biggest world sizes.

    References come first because every other verdict needs them; big cells next, so that the small ones fill the
    cores at the end.
    """
    references = {cell.reference for cell in expansion.cells if cell.reference}
    ordered = sorted(
        expansion.cells,
        key=lambda cell: (cell.id not in references and cell.role != "reference", -cell.config.layout.world_size),
    )
    largest = max(cell.config.layout.world_size for cell in ordered)
    return (Allocation(name="local", cells=tuple(cell.id for cell in ordered), ranks_per_node=largest),)
