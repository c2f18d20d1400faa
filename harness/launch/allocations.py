"""Which cells run together, where, in what order, and at what cost: counts are exact, seconds are a rough estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.core.cell.config import CellConfig
from harness.core.cell.flops import weights_per_token
from harness.core.errors import InputError, Problem
from harness.core.run.run_plan import Allocation, Expansion, PlannedCell
from harness.core.stack import DEFAULT
from harness.matrix.cluster import LOCAL, ClusterProfile, nodes_for
from harness.matrix.schema.sections import Launch

MAX_ARRAY = 1000  # members of one array; Slurm's default MaxArraySize is 1001
HERE = "local"  # the allocation of the cells without a stack on this machine
FILL = 0.5  # share of a job's time limit that its cells may take by the estimate, which is rough


def plan_allocations(
    expansion: Expansion, cluster: ClusterProfile = LOCAL, launch: Launch | None = None
) -> tuple[Allocation, ...]:
    """Return one allocation per stack on this machine, one array per shape (nodes, ranks per node, stack) on a cluster.

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
    """Yield one allocation per stack, in the order in which the stacks appear in the matrix."""
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
    """Return the allocations of each array, in order."""
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
    """Split the cells of one shape into jobs of `most` cells, or of as many as are estimated to fit the time limit."""
    budget = minutes * 60 * FILL - IMPORT_S
    job: list[PlannedCell] = []
    seconds = 0.0
    for cell in cells:
        cell_s = cell_seconds(cell.config, cluster, nodes)
        if job and (len(job) == most if most else seconds + cell_s > budget):
            yield job
            job, seconds = [], 0.0
        job.append(cell)
        seconds += cell_s
    if job:
        yield job


# Fitted to matrices/smoke.yaml with megatron-core 0.19.2 on 2 cores without a GPU: 167 ranks in 56 to 69 s.
IMPORT_S = 6.5  # torch and Megatron, once per agent
RANK_CPU_S = 0.65  # fork, process groups, model, record: processor time of one rank outside its steps
RANK_STEP_CPU_S = 0.02  # one rank, one step, without its arithmetic: schedule and collectives
CPU_FLOPS = 5e9  # small matrix products in fp32, one core
# Assumed for cells on GPUs, not measured: CUDA contexts and NCCL communicators, kernel launches, small products.
GPU_CELL_S = 15.0
GPU_STEP_S = 0.2
GPU_FLOPS = 2e13  # one GPU


@dataclass(frozen=True, kw_only=True)
class Cost:
    """`rank_steps` counts training steps times ranks over all cells."""

    cells: int
    rejected: int
    excluded: int
    largest_world: int  # ranks of the largest cell
    ranks: int  # processes started over the whole run
    rank_steps: int
    seconds: float
    basis: str  # how the seconds were estimated


def estimate(expansion: Expansion, *, cores: int = 1) -> Cost:
    """Return the counts of a plan and its estimated wall time on `cores` processor cores."""
    configs = [part for cell in expansion.cells for part in _parts(cell.config)]
    worlds = [config.layout.world_size for config in configs]
    stacks = len({config.stack for config in configs})
    imports = "one import" if stacks == 1 else f"{stacks} imports"
    busy = stacks * IMPORT_S / min(cores, stacks)
    for config in configs:
        busy += _gpu_seconds(config) if config.device == "cuda" else _cpu_seconds(config, cores)
    basis = [imports]
    if any(config.device != "cuda" for config in configs):
        basis.append(f"{RANK_CPU_S} s per rank and {RANK_STEP_CPU_S} s per rank and step, cores: {cores}")
    if any(config.device == "cuda" for config in configs):
        basis.append(f"{GPU_CELL_S:g} s per cell on GPUs and {GPU_STEP_S:g} s per step, one cell after another")
    return Cost(
        cells=len(expansion.cells),
        rejected=len(expansion.rejected),
        excluded=sum(expansion.excluded.values()),
        largest_world=max(worlds),
        ranks=sum(worlds),
        rank_steps=sum(len(config.steps) * world for config, world in zip(configs, worlds)),
        seconds=busy,
        basis=", ".join(basis),
    )


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """The cost of all jobs of one array."""

    array: str
    jobs: int
    nodes: int  # of one job
    gpus: int  # of one job, over all its nodes
    time_limit_min: int
    seconds: float  # estimated, over all jobs

    @property
    def node_hours(self) -> float:
        """Estimated."""
        return self.nodes * self.seconds / 3600

    @property
    def most_node_hours(self) -> float:
        """Upper limit: every job runs into its time limit."""
        return self.jobs * self.nodes * self.time_limit_min / 60

    @property
    def gpu_hours(self) -> float:
        """Estimated."""
        return self.gpus * self.seconds / 3600

    @property
    def most_gpu_hours(self) -> float:
        """Upper limit: every job runs into its time limit."""
        return self.jobs * self.gpus * self.time_limit_min / 60


def job_costs(expansion: Expansion, allocations: Sequence[Allocation], cluster: ClusterProfile) -> tuple[JobCost, ...]:
    """Return the cost of every array, in order; empty on this machine."""
    if cluster.kind == "local":
        return ()
    configs = {cell.id: cell.config for cell in expansion.cells}
    members: dict[str, list[Allocation]] = {}
    for allocation in allocations:
        members.setdefault(allocation.array, []).append(allocation)
    return tuple(
        JobCost(
            array=array,
            jobs=len(jobs),
            nodes=jobs[0].nodes,
            gpus=jobs[0].nodes * cluster.gpus_of(jobs[0].ranks_per_node),
            time_limit_min=jobs[0].time_limit_min or cluster.time,
            seconds=sum(
                IMPORT_S + sum(cell_seconds(configs[cell], cluster, job.nodes) for cell in job.cells) for job in jobs
            ),
        )
        for array, jobs in members.items()
    )


def refuse_above(costs: Sequence[JobCost], most_gpu_hours: float, cluster: ClusterProfile) -> None:
    """Raise InputError, with the arithmetic, if the jobs may cost more than `most_gpu_hours`.

    Counts time limits, which Slurm enforces; the estimate is too rough to guard a budget.
    """
    if not cluster.gpus_per_node:
        raise InputError(f"--max-gpu-hours: cluster {cluster.name} has no GPUs, so there is nothing to limit")
    total = sum(cost.most_gpu_hours for cost in costs)
    if total <= most_gpu_hours:
        return
    terms = [
        f"{cost.array}: {cost.jobs} x {cost.gpus} x {cost.time_limit_min / 60:.4g} h = {cost.most_gpu_hours:.4g}"
        for cost in costs
    ]
    message = (
        f"--max-gpu-hours {most_gpu_hours:g}: the plan may cost {total:.4g} GPU-hours, jobs x GPUs x time limit: "
        f"{'; '.join(terms)} (estimated use: {sum(cost.gpu_hours for cost in costs):.3g})"
    )
    raise InputError(Problem(message=message, hint="lower launch.time_limit_min, or pick fewer cells with --only"))


def cell_seconds(config: CellConfig, cluster: ClusterProfile, nodes: int) -> float:
    """Return estimated seconds of one cell in a job of `nodes` nodes, which runs its cells one after the other."""
    return sum(_part_seconds(part, cluster, nodes) for part in _parts(config))


def _part_seconds(config: CellConfig, cluster: ClusterProfile, nodes: int) -> float:
    if cluster.gpus_per_node:
        return _gpu_seconds(config)
    return _cpu_seconds(config, nodes * (cluster.cpus_per_task or cluster.ranks_per_node))


def _parts(config: CellConfig) -> tuple[CellConfig, ...]:
    """Return the processes of a cell that resumes start twice."""
    return (config, config.resumed) if config.resume else (config,)


def _gpu_seconds(config: CellConfig) -> float:
    """Return the GPU-seconds of a job; every rank has a GPU."""
    return GPU_CELL_S + len(config.steps) * (GPU_STEP_S + step_flops(config) / (GPU_FLOPS * config.layout.world_size))


def _cpu_seconds(config: CellConfig, cores: int) -> float:
    world, steps = config.layout.world_size, len(config.steps)
    busy = world * (RANK_CPU_S + steps * RANK_STEP_CPU_S) + steps * step_flops(config) / CPU_FLOPS
    return busy / min(cores, world)


def step_flops(config: CellConfig) -> float:
    """Return the floating-point operations of one step, forward and backward.

    6 x parameters x slots, without attention scores.

    Slots are bounded by one row per document, the unpacked case.
    """
    model, train = config.model, config.train
    return 6.0 * weights_per_token(model) * train.global_batch * train.seq_length
