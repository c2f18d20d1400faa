"""Retries of cells that the cluster ended: for infrastructure causes that Slurm or the agents report, up to a limit.

Agents report nodes that they lost and GPUs that broke: with `srun --kill-on-bad-exit` such a job is FAILED long before
Slurm notices the node. They report a full disk by their exit code; `resume` continues such a run once there is room.

Every attempt is kept and judged. A cell that passes on a later one is FLAKY, unless an earlier one failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import chain, count

from harness.core.cell.config import CellConfig
from harness.core.run.cell_result import CellResult
from harness.core.run.events import Failed, Retry
from harness.core.run.job_start import was_cut_off
from harness.core.run.journal import note, read_events
from harness.core.run.run_dir import AttemptDir, RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import Allocation, RunPlan
from harness.core.run.work_order import newest_work_order, read_work_order
from harness.core.serialization import from_jsonable, loads
from harness.infra.slurm.client import SlurmClient
from harness.infra.slurm.follower import Ended
from harness.infra.slurm.sbatch_template import Job, job_name
from harness.infra.slurm.submissions import order_allocation, profile_of, render

RETRIED = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})


def allocations_of(run: RunDir, plan: RunPlan) -> list[Allocation]:
    """The planned allocations and those of retries so far."""
    retries = [event.allocation for event in read_events(run.events) if isinstance(event, Retry)]
    return [*plan.allocations, *retries]


def retry(run: RunDir, plan: RunPlan, one: Ended, client: SlurmClient) -> list[Allocation]:
    """One new allocation, written and recorded but not submitted, for the cells that infrastructure ended, or none."""
    named = _failed_hosts(run, one)
    announced = _announced(run, one)
    if one.finished or not (one.state.state in RETRIED or one.state.disk_full or named or announced):
        return []
    cells = _cut_off(run, plan, one.allocation)
    if not cells or run.cancelled.exists():  # a cancelled run starts nothing
        return []
    why = f"job {one.job} ended as {one.state.state} on {one.state.nodes or 'no node'}"
    why += ": the run directory's disk was full" if one.state.disk_full else ""
    why += f": its agents reported {', '.join(named)}" if named else ""
    why += ": a signal announced its end" if announced else ""
    avoided = dict.fromkeys((*_excluded_from(run, one.allocation), *_failed_nodes(one, named, client)))
    return [_write(run, plan, one.allocation, cells, why, tuple(avoided))]


def keep_from_starting(plan: RunPlan, one: Ended, client: SlurmClient) -> None:
    """Cancel a job that is no longer followed: Slurm may restart it, or it may still run unnoticed.

    A job that Slurm last showed in the queue stays: if it starts after all, its cells have results and do not run.
    """
    if not one.finished and (one.state.state in RETRIED or not (one.state.ended or one.state.waits)):
        client.cancel(job_name(plan.run_id, one.allocation.array), [one.job])


def again(run: RunDir, plan: RunPlan, wanted: Collection[str]) -> list[Allocation]:
    """New allocations, written and recorded but not submitted, for cells that the user wants to run again.

    Only for cells whose newest attempt is over, however many attempts they have had, and on any node: by now those
    that failed may work again.
    """
    made = []
    left = set(wanted)
    for allocation in reversed(allocations_of(run, plan)):  # retries follow the allocation that they repeat
        order = newest_work_order(run, allocation.name).attempts
        over = (cell for cell in order if cell in left and run.attempt(cell, order[cell]).result.exists())
        cells = {cell: order[cell] + 1 for cell in over}
        left -= set(order)
        if cells:
            made.append(_write(run, plan, allocation, cells, "requested by the user"))
    return made


def _failures(run: RunDir, one: Ended, nodes: Iterable[int]) -> list[Failed]:
    """How the agents of these nodes of a FAILED job failed."""
    if one.state.state != "FAILED":
        return []
    order = run.newest_order(one.allocation.name)
    events = (event for node in nodes for event in read_events(run.agent_journal(order, node)))
    return [event for event in events if isinstance(event, Failed)]


def _announced(run: RunDir, one: Ended) -> bool:
    """Whether the leader of a FAILED job started no further cell because a signal announced the job's end."""
    return any(event.announced for event in _failures(run, one, [0]))


def _failed_hosts(run: RunDir, one: Ended) -> tuple[str, ...]:
    """The hosts that the agents of a FAILED job report as lost or broken: by its leader, else by the other agents."""
    for nodes in ([0], range(1, one.allocation.nodes)):
        hosts = dict.fromkeys(host for event in _failures(run, one, nodes) for host in event.nodes)
        if hosts:
            return tuple(hosts)
    return ()


def _failed_nodes(one: Ended, named: tuple[str, ...], client: SlurmClient) -> tuple[str, ...]:
    """Nodes to exclude: the node of a one-node job; of several those that agents name or Slurm marks as unusable."""
    if not (named or one.state.state in ("NODE_FAIL", "BOOT_FAIL")) or not one.state.nodes:
        return ()
    if one.allocation.nodes == 1:
        return (one.state.nodes,)
    nodes = client.nodes_of_hosts(one.state.nodes, named) or client.unusable(one.state.nodes)
    return tuple(nodes.split(",")) if nodes else ()


def _excluded_from(run: RunDir, allocation: Allocation) -> tuple[str, ...]:
    """The nodes that a retry avoids because an earlier attempt of its cells failed there."""
    events = (event for event in read_events(run.events) if isinstance(event, Retry))
    return next((event.exclude for event in events if event.allocation.name == allocation.name), ())


def _cut_off(run: RunDir, plan: RunPlan, allocation: Allocation) -> dict[str, int]:
    """Cell to run again -> number of its next attempt."""
    again = {}
    for cell, attempt in newest_work_order(run, allocation.name).attempts.items():
        if _needs_another(run.attempt(cell, attempt)) and attempt < plan.max_attempts:
            again[cell] = attempt + 1
    # A launcher that was killed may have written the retry, or a part of it, already.
    retries = allocations_of(run, plan)[len(plan.allocations) :]
    ordered = {item for retried in retries for item in read_work_order(run, retried.name).attempts.items()}
    return {cell: number for cell, number in again.items() if (cell, number) not in ordered}


def _needs_another(attempt: AttemptDir) -> bool:
    """Whether it did not end, or something other than the code under test ended it, before or after a resume."""
    results = [
        from_jsonable(CellResult, loads(text_of(path)))
        for path in (attempt.result, attempt.resumed.result)
        if path.exists()
    ]
    return not attempt.result.exists() or any(was_cut_off(result) for result in results)


def _new_name(run: RunDir, plan: RunPlan, earlier: Allocation, attempt: int) -> str:
    """A name that no allocation has: cells of one job may get the same attempt in different retries."""
    known = {allocation.name for allocation in allocations_of(run, plan)}
    name = f"{earlier.name}-again{attempt}"
    return next(new for new in chain([name], (f"{name}-{number}" for number in count(2))) if new not in known)


def _write(
    run: RunDir,
    plan: RunPlan,
    earlier: Allocation,
    cells: dict[str, int],
    why: str,
    exclude: tuple[str, ...] = (),
) -> Allocation:
    name = _new_name(run, plan, earlier, max(cells.values()))
    allocation = replace(earlier, name=name, array=name, index=0, cells=tuple(cells))
    profile = profile_of(run)
    for cell, attempt in cells.items():
        config = loads(text_of(run.attempt(cell, 1).config))
        write_json(run.attempt(cell, attempt).config, from_jsonable(CellConfig, config))
    ranks = read_work_order(run, earlier.name).parallel_ranks
    order_allocation(run, allocation, cells, parallel_ranks=ranks)
    job = Job(name=name, allocations=(allocation,), exclude=exclude)
    text = render(run, plan, job, profile, run.root / "submissions" / "template.sbatch.j2")
    write_atomic(run.submission(name, ".sbatch"), text)
    note(run.events, Retry(why=why, allocation=allocation, exclude=exclude))
    return allocation
