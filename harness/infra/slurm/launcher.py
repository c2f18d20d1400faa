"""Notes how the jobs of a run ended, and closes what they left; submission is in submit.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from harness.core.run.records import CellResult
from harness.core.run.run_dir import RunDir, append_line, read_events, write_json
from harness.core.run.run_plan import Allocation
from harness.infra.slurm.follower import Ended
from harness.infra.slurm.submissions import read_order


def unfinished(run: RunDir, allocations: Iterable[Allocation]) -> list[Allocation]:
    """Those whose end no launcher has dealt with yet."""
    done = {event["allocation"] for event in read_events(run.events) if event["event"] in ("job_ended", "refused")}
    return [allocation for allocation in allocations if allocation.name not in done]


def close(run: RunDir, one: Ended) -> None:
    """Note how a job ended, and give every cell that it left without a result one that says why."""
    known = f"{one.state.state} (exit {one.state.exit_code or '?'})" if one.state.source else "unknown to Slurm"
    ended = (
        f"{one.state.ending(one.job)} before the cell ended"
        if one.state.named
        else f"job {one.job} ended before the cell did"
    )
    reason = f"Slurm {ended}: {known}" + (f" on {one.state.nodes}" if one.state.nodes else "")
    reason += "; the run directory's disk was full" if one.state.disk_full else ""
    for cell, attempt in read_order(run, one.allocation.name).items():
        give_up(run, cell, attempt, reason)
    over = one.state.ended  # an agent that finished is not asked after
    facts = {"state": one.state.state if over else "", "words": one.state.ending(one.job) if over else ""}
    names = {"allocation": one.allocation.name, "array": one.allocation.array, "job": one.job}
    append_line(run.events, {"time": time.time(), "event": "job_ended", **names, **facts})


def close_refused(run: RunDir, refused: Mapping[str, str]) -> None:
    """The same for allocations that sbatch did not take; `resume` does not submit them again."""
    for name, why in refused.items():
        for cell, attempt in read_order(run, name).items():
            give_up(run, cell, attempt, why)
        append_line(run.events, {"time": time.time(), "event": "refused", "allocation": name, "why": why})


def give_up(run: RunDir, cell: str, attempt: int, reason: str) -> None:
    """The result of a cell that its agent has written none of."""
    result = run.attempt(cell, attempt).result
    if not result.exists():
        now = time.time()
        missing = CellResult(cell=cell, attempt=attempt, status="error", reason=reason, started=now, finished=now)
        write_json(result, missing)
