"""Writes submissions into the run directory: a job file per array, a work order per allocation."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import Allocation, RunPlan
from harness.core.run.work_order import WorkOrder, cell_attempts, write_work_order
from harness.core.serialization import from_jsonable, loads
from harness.core.stack import ReadyStack
from harness.infra.slurm import nemo_run, sbatch_template
from harness.infra.slurm.sbatch_template import Job
from harness.infra.stacks.node_code import agent_environment, copy_node_code, plugin_packages
from harness.plan.jobs.allocations import arrays
from harness.plan.jobs.cluster import ClusterProfile, Container
from harness.plan.schema.sections import Launch


def jobs_of(allocations: Iterable[Allocation], throttle: int = Job.throttle) -> list[Job]:
    """The submissions of allocations, one per array. `throttle`: members of an array that may run at once."""
    return [Job(name=name, allocations=members, throttle=throttle) for name, members in arrays(allocations).items()]


def write_submissions(
    run: RunDir, plan: RunPlan, profile: ClusterProfile, template: Path, launch: Launch
) -> list[Path]:
    """Write work orders, job files and the profile of a plan, all or none; returns the paths of the job files."""
    jobs = jobs_of(plan.allocations, launch.throttle)
    texts = [render(run, plan, job, profile, template) for job in jobs]
    write_json(run.cluster, profile, indent=2)
    write_atomic(run.root / "submissions" / "template.sbatch.j2", template.read_text(encoding="utf-8"))
    if plan.stacks:
        copy_node_code(run.node_code, plugin_packages(run))
    for allocation in plan.allocations:
        ranks = parallel_ranks(allocation, profile, launch)
        order_allocation(run, allocation, dict.fromkeys(allocation.cells, 1), parallel_ranks=ranks)
    for job, text in zip(jobs, texts):
        write_atomic(run.submission(job.name, ".sbatch"), text)
    return [run.submission(job.name, ".sbatch") for job in jobs]


def profile_of(run: RunDir) -> ClusterProfile:
    """The profile that `write_submissions` wrote."""
    return from_jsonable(ClusterProfile, loads(text_of(run.cluster)))


def render(run: RunDir, plan: RunPlan, job: Job, profile: ClusterProfile, template: Path) -> str:
    """The text of one job file of a plan. A stack runs in a container only if the stack itself names an image."""
    render_job = nemo_run.render_job if profile.launcher == "nemo-run" else sbatch_template.render_job
    default = "python3" if profile.container else sys.executable
    stack = plan.stacks.get(job.allocations[0].stack)
    if stack is not None:
        return render_job(
            job,
            _in_container(profile, stack),
            run=run,
            run_id=plan.run_id,
            command=plan.command,
            python=stack.python,
            template=template,
            env=agent_environment(stack, run.node_code),
        )
    return render_job(
        job,
        profile,
        run=run,
        run_id=plan.run_id,
        command=plan.command,
        python=profile.python or default,
        template=template,
    )


def _in_container(profile: ClusterProfile, stack: ReadyStack) -> ClusterProfile:
    """The profile with the container of a stack: its image, and the worktrees beside the profile's own mounts."""
    if not stack.requested.container:
        return replace(profile, container=None)
    base = profile.container or Container(image="")
    trees = dict.fromkeys(folder for home in stack.homes for folder in home.folders)
    mounts = (*base.mounts, *(f"{tree}:{tree}" for tree in trees))
    return replace(profile, container=replace(base, image=stack.requested.container, mounts=mounts))


def order_allocation(run: RunDir, allocation: Allocation, attempts: dict[str, int], *, parallel_ranks: int) -> None:
    """Write the work order that an allocation's agents read. `attempts`: cell -> number of its attempt, in order."""
    order = WorkOrder(
        cells=cell_attempts(attempts.items()),
        parallel_ranks=parallel_ranks,
        nodes=allocation.nodes,
        ranks_per_node=allocation.ranks_per_node,
    )
    write_work_order(run, allocation.name, order)


def parallel_ranks(allocation: Allocation, profile: ClusterProfile, launch: Launch) -> int:
    """How many ranks run at once on a node: for cells over several nodes the ranks of one cell, else what fits.

    With GPUs as many as the job has GPUs, since each cell gets its own; a job for part of a node has GPUs for one cell.
    `launch.parallel_ranks` may lower the number.
    """
    if allocation.nodes > 1:
        return allocation.ranks_per_node
    if profile.gpus_per_node:
        gpus = profile.gpus_of(allocation.ranks_per_node)
        return max(min(launch.parallel_ranks or gpus, gpus), allocation.ranks_per_node)
    return max(launch.parallel_ranks or profile.ranks_per_node, allocation.ranks_per_node)
