"""Second attempts of cells that the cluster ended: only for infrastructure causes that Slurm itself states, bounded.

A full disk is one, which agents tell by their exit code: such a run goes on, with `resume`, once there is room.

Every attempt is kept. A cell that passes on a later one is FLAKY, and its earlier attempts say why.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from harness.edge.journal import read_events
from harness.edge.run_dir import RunDir, append_line, write_atomic, write_json
from harness.edge.sbatch_template import Job
from harness.edge.slurm_launcher import Ended
from harness.edge.submissions import read_order, render, write_order
from harness.plan.cluster import ClusterProfile
from harness.words.cell import CellConfig
from harness.words.jsonable import from_jsonable, loads
from harness.words.records import CellResult
from harness.words.run_plan import Allocation, RunPlan

RETRIED = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})
MOST_ATTEMPTS = 3
_CUT_OFF = ("missing", "killed")  # endings of ranks that a lost node explains


def allocations_of(run: RunDir, plan: RunPlan) -> list[Allocation]:
    """The planned allocations and those of retries that were made so far."""
    retries = [event["allocation"] for event in read_events(run.events) if event["event"] == "retry"]
    return [*plan.allocations, *(from_jsonable(Allocation, values) for values in retries)]


def retries(run: RunDir, plan: RunPlan, ended: Iterable[Ended]) -> list[Allocation]:
    """Allocations, written and recorded but not submitted, for the cells that infrastructure cut off."""
    known = {allocation.name for allocation in allocations_of(run, plan)}
    made = []
    for one in ended:
        cells = _cut_off(run, one)
        name = f"{one.allocation.name}-again{max(cells.values(), default=0)}"
        if cells and name not in known:  # a launcher that was killed may have made it already
            made.append(_write(run, plan, one, name, cells))
    return made


def _cut_off(run: RunDir, one: Ended) -> dict[str, int]:
    """Cells to run again with the number of their next attempt; none unless Slurm states an infrastructure cause."""
    if one.finished or not (one.state.state in RETRIED or one.state.disk_full):
        return {}
    again = {}
    for cell, attempt in read_order(run, one.allocation.name).items():
        path = run.attempt(cell, attempt).result
        result = from_jsonable(CellResult, loads(path.read_text(encoding="utf-8"))) if path.exists() else None
        lost = result is None or (
            result.status != "completed" and any(ending.ended in _CUT_OFF for ending in result.ranks)
        )
        if lost and attempt < MOST_ATTEMPTS:
            again[cell] = attempt + 1
    return again


def _write(run: RunDir, plan: RunPlan, one: Ended, name: str, cells: dict[str, int]) -> Allocation:
    allocation = replace(one.allocation, name=name, array=name, index=0, cells=tuple(cells))
    profile = from_jsonable(ClusterProfile, loads((run.root / "cluster.json").read_text(encoding="utf-8")))
    for cell, attempt in cells.items():
        config = loads(run.attempt(cell, 1).config.read_text(encoding="utf-8"))
        write_json(run.attempt(cell, attempt).config, from_jsonable(CellConfig, config))
    order = loads(run.submission(one.allocation.name).read_text(encoding="utf-8"))
    write_order(run, allocation, cells, parallel_ranks=order["parallel_ranks"])
    # Slurm keeps a failed node out by itself; a job of several nodes could not start if all of them were excluded.
    failed = one.state.state in ("NODE_FAIL", "BOOT_FAIL") and allocation.nodes == 1
    job = Job(name=name, allocations=(allocation,), exclude=(one.state.nodes,) if failed and one.state.nodes else ())
    text = render(run, plan, job, profile, run.root / "submissions" / "template.sbatch.j2")
    write_atomic(run.submission(name, ".sbatch"), text)
    why = f"job {one.job} ended as {one.state.state} on {one.state.nodes or 'no node'}"
    why += ": the run directory's disk was full" if one.state.disk_full else ""
    append_line(run.events, {"time": time.time(), "event": "retry", "why": why, "allocation": allocation})
    return allocation
