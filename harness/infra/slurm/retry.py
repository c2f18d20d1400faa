"""Retries of cells that the cluster ended: only for infrastructure causes that Slurm reports, up to a limit.

A full disk is one of them, reported by the agents' exit code; `resume` continues such a run once there is room.

Every attempt is kept and judged. A cell that passes on a later one is FLAKY, unless an earlier one failed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.core.cell.config import CellConfig
from harness.core.run.events import Retry
from harness.core.run.job_start import was_cut_off
from harness.core.run.journal import note, read_events
from harness.core.run.records import CellResult
from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import Allocation, RunPlan
from harness.core.run.work_order import newest_work_order, read_work_order
from harness.core.serialization import from_jsonable, loads
from harness.infra.slurm.client import SlurmClient
from harness.infra.slurm.follower import Ended
from harness.infra.slurm.sbatch_template import Job, job_name
from harness.infra.slurm.submissions import order_allocation, render
from harness.plan.jobs.cluster import ClusterProfile

RETRIED = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})


def allocations_of(run: RunDir, plan: RunPlan) -> list[Allocation]:
    """The planned allocations and those of retries so far."""
    retries = [event.allocation for event in read_events(run.events) if isinstance(event, Retry)]
    return [*plan.allocations, *retries]


def retry(run: RunDir, plan: RunPlan, one: Ended, client: SlurmClient) -> list[Allocation]:
    """One new allocation, written and recorded but not submitted, for the cells that infrastructure ended, or none."""
    cells = _cut_off(run, one, plan.max_attempts)
    name = f"{one.allocation.name}-again{max(cells.values(), default=0)}"
    known = {allocation.name for allocation in allocations_of(run, plan)}
    # A launcher that was killed may have written it already; a cancelled run starts nothing.
    if not cells or name in known or run.cancelled.exists():
        return []
    why = f"job {one.job} ended as {one.state.state} on {one.state.nodes or 'no node'}"
    why += ": the run directory's disk was full" if one.state.disk_full else ""
    return [_write(run, plan, one.allocation, name, cells, why, _failed_nodes(one, client))]


def keep_from_starting(plan: RunPlan, one: Ended, client: SlurmClient) -> None:
    """Cancel a job that is no longer followed: Slurm may restart it, or it may still run unnoticed."""
    if not one.finished and (one.state.state in RETRIED or not one.state.ended):
        client.cancel(job_name(plan.run_id, one.allocation.array), [one.job])


def again(run: RunDir, plan: RunPlan, wanted: Collection[str]) -> list[Allocation]:
    """New allocations, written and recorded but not submitted, for cells that the user wants to run again.

    Only for cells whose newest attempt is over, however many attempts they have had.
    """
    made = []
    left = set(wanted)
    for allocation in reversed(allocations_of(run, plan)):  # retries follow the allocation that they repeat
        order = newest_work_order(run, allocation.name).attempts
        over = (cell for cell in order if cell in left and run.attempt(cell, order[cell]).result.exists())
        cells = {cell: order[cell] + 1 for cell in over}
        left -= set(order)
        if cells:
            name = f"{allocation.name}-again{max(cells.values())}"
            made.append(_write(run, plan, allocation, name, cells, "requested by the user"))
    return made


def _failed_nodes(one: Ended, client: SlurmClient) -> tuple[str, ...]:
    """Nodes to exclude: the node of a one-node job; of several nodes, those that Slurm marks as unusable."""
    if one.state.state not in ("NODE_FAIL", "BOOT_FAIL") or not one.state.nodes:
        return ()
    nodes = one.state.nodes if one.allocation.nodes == 1 else client.unusable(one.state.nodes)
    return (nodes,) if nodes else ()


def _cut_off(run: RunDir, one: Ended, most: int) -> dict[str, int]:
    """Cell to run again -> number of its next attempt; none unless Slurm reports an infrastructure cause."""
    if one.finished or not (one.state.state in RETRIED or one.state.disk_full):
        return {}
    again = {}
    for cell, attempt in newest_work_order(run, one.allocation.name).attempts.items():
        path = run.attempt(cell, attempt).result
        result = from_jsonable(CellResult, loads(text_of(path))) if path.exists() else None
        if (result is None or was_cut_off(result)) and attempt < most:
            again[cell] = attempt + 1
    return again


def _write(
    run: RunDir,
    plan: RunPlan,
    earlier: Allocation,
    name: str,
    cells: dict[str, int],
    why: str,
    exclude: tuple[str, ...] = (),
) -> Allocation:
    allocation = replace(earlier, name=name, array=name, index=0, cells=tuple(cells))
    profile = from_jsonable(ClusterProfile, loads(text_of(run.cluster)))
    for cell, attempt in cells.items():
        config = loads(text_of(run.attempt(cell, 1).config))
        write_json(run.attempt(cell, attempt).config, from_jsonable(CellConfig, config))
    ranks = read_work_order(run, earlier.name).parallel_ranks
    order_allocation(run, allocation, cells, parallel_ranks=ranks)
    job = Job(name=name, allocations=(allocation,), exclude=exclude)
    text = render(run, plan, job, profile, run.root / "submissions" / "template.sbatch.j2")
    write_atomic(run.submission(name, ".sbatch"), text)
    note(run.events, Retry(why=why, allocation=allocation))
    return allocation
