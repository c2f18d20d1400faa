"""Which cells run together, where, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.core.run.run_plan import Allocation, Expansion, PlannedCell
from harness.core.stack import DEFAULT
from harness.plan.jobs.cluster import LOCAL, ClusterProfile, nodes_for
from harness.plan.jobs.cost import IMPORT_S, cell_seconds
from harness.plan.schema.sections import Launch

MAX_ARRAY = 1000  # members of one array; Slurm's default MaxArraySize is 1001
FILL = 0.5  # share of its time limit that a job is filled to, since the estimate is rough


def plan_allocations(
    expansion: Expansion, cluster: ClusterProfile = LOCAL, launch: Launch | None = None
) -> tuple[Allocation, ...]:
    """Controls first, then the largest world sizes; one allocation per stack here, one array per shape on a cluster.

    Controls come first because every other verdict needs them; large cells next, so that small ones fill the cores at
    the end. A shape is (nodes, ranks per node, stack).
    """
    controls = {cell.reference for cell in expansion.cells if cell.reference}
    ordered = sorted(
        expansion.cells,
        key=lambda cell: (cell.id not in controls and cell.role != "reference", -cell.config.layout.world_size),
    )
    if cluster.kind == "slurm":
        return tuple(_in_arrays(ordered, cluster, launch or Launch()))
    return tuple(_on_this_machine(expansion.cells, ordered))


def _on_this_machine(cells: Sequence[PlannedCell], ordered: Sequence[PlannedCell]) -> Iterator[Allocation]:
    """One allocation per stack, in the order in which the stacks appear in the matrix."""
    for stack in dict.fromkeys(cell.config.stack for cell in cells):
        members = [cell for cell in ordered if cell.config.stack == stack]
        yield Allocation(
            name="local" if stack == DEFAULT else f"local-{stack}",
            cells=tuple(cell.id for cell in members),
            ranks_per_node=max(cell.config.layout.world_size for cell in members),
            stack=stack,
            turns=any(cell.config.timing.turns for cell in members),
        )


def arrays(allocations: Iterable[Allocation]) -> dict[str, tuple[Allocation, ...]]:
    """The allocations of each array, in order."""
    result: dict[str, list[Allocation]] = {}
    for allocation in allocations:
        result.setdefault(allocation.array, []).append(allocation)
    return {name: tuple(members) for name, members in result.items()}


def _in_arrays(ordered: Sequence[PlannedCell], cluster: ClusterProfile, launch: Launch) -> Iterator[Allocation]:
    shapes: dict[tuple[int, int, str], list[PlannedCell]] = {}
    for cell in ordered:
        world = cell.config.layout.world_size
        nodes = nodes_for(world, cluster, launch.nodes_per_cell)
        shapes.setdefault((nodes, world // nodes, cell.config.stack), []).append(cell)
    minutes = launch.time_limit_min or cluster.time
    for (nodes, ranks, stack), cells in shapes.items():
        name = f"{nodes}n{ranks}r" + (f"-{stack}" if stack != DEFAULT else "")
        for number, members in enumerate(_jobs(cells, cluster, nodes, minutes, launch.cells_per_allocation)):
            part, index = divmod(number, MAX_ARRAY)
            array = name if part == 0 else f"{name}.{part + 1}"
            yield Allocation(
                name=f"{array}-{index}",
                cells=tuple(cell.id for cell in members),
                nodes=nodes,
                ranks_per_node=ranks,
                stack=stack,
                array=array,
                index=index,
                time_limit_min=minutes,
            )


def _jobs(
    cells: Sequence[PlannedCell], cluster: ClusterProfile, nodes: int, minutes: int, most: int | None
) -> Iterator[list[PlannedCell]]:
    """The cells of one shape cut into jobs: `most` each, or as many as the estimate fits into the time limit."""
    room = minutes * 60 * FILL - IMPORT_S
    job: list[PlannedCell] = []
    seconds = 0.0
    for cell in cells:
        own = cell_seconds(cell.config, cluster, nodes)
        if job and (len(job) == most if most else seconds + own > room):
            yield job
            job, seconds = [], 0.0
        job.append(cell)
        seconds += own
    if job:
        yield job
