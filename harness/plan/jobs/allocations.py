"""Which cells run together, where, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.core.run.run_plan import Allocation, Expansion, PlannedCell
from harness.core.stack import DEFAULT
from harness.plan.jobs.cluster import LOCAL, ClusterProfile, nodes_for
from harness.plan.jobs.cost import IMPORT_S, cell_seconds
from harness.plan.schema.sections import Launch

MAX_ARRAY = 1000  # members of one array; Slurm's default MaxArraySize is 1001
HERE = "local"  # the allocation of the cells without a stack on this machine
FILL = 0.5  # share of a job's time limit that its cells may take by the estimate, which is rough


def plan_allocations(
    expansion: Expansion, cluster: ClusterProfile = LOCAL, launch: Launch | None = None
) -> tuple[Allocation, ...]:
    """One allocation per stack on this machine, one array per shape (nodes, ranks per node, stack) on a cluster.

    Controls come first because every other outcome needs them; then the largest cells, so that small ones fill the
    cores at the end.
    """
    controls = {cell.control for cell in expansion.cells if cell.control}
    ordered = sorted(
        expansion.cells,
        key=lambda cell: (cell.id not in controls and cell.role != "control", -cell.config.layout.world_size),
    )
    if cluster.kind == "slurm":
        return tuple(_in_arrays(ordered, cluster, launch or Launch()))
    return tuple(_on_this_machine(expansion.cells, ordered))


def _on_this_machine(cells: Sequence[PlannedCell], ordered: Sequence[PlannedCell]) -> Iterator[Allocation]:
    """One allocation per stack, in the order in which the stacks appear in the matrix."""
    for stack in dict.fromkeys(cell.config.stack for cell in cells):
        members = [cell for cell in ordered if cell.config.stack == stack]
        yield Allocation(
            name=HERE if stack == DEFAULT else f"{HERE}-{stack}",
            cells=tuple(cell.id for cell in members),
            ranks_per_node=max(cell.config.layout.world_size for cell in members),
            stack=stack,
            interleaved=any(cell.config.timing.turns for cell in members),
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
    """Splits the cells of one shape into jobs of `most` cells, or of as many as are estimated to fit the time limit."""
    budget = minutes * 60 * FILL - IMPORT_S
    job: list[PlannedCell] = []
    seconds = 0.0
    for cell in cells:
        own = cell_seconds(cell.config, cluster, nodes)
        if job and (len(job) == most if most else seconds + own > budget):
            yield job
            job, seconds = [], 0.0
        job.append(cell)
        seconds += own
    if job:
        yield job
