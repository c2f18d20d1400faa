"""Which work order a job's agents run: a start of the job first claims it, and a second start makes new attempts.

A second start changes no file of the first, whose processes may still run on a node that Slurm considers lost.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace

from harness.core.errors import InfrastructureError
from harness.core.run.job_start import Claim, JobStart, started_again, was_cut_off
from harness.core.run.records import CellResult, sealed
from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json, write_new
from harness.core.run.run_plan import CellAttempt, read_work_order, write_work_order
from harness.core.serialization import from_jsonable, loads
from harness.runtime.coordination.rendezvous import POLL_S, STARTUP_S


def work_order_of(
    run: RunDir,
    allocation: str,
    node: int,
    environment: Mapping[str, str] = os.environ,
    timeout_s: float = STARTUP_S,
) -> str | None:
    """Return the name of the work order that this agent runs; None when this start of the job must not run, or another
    agent of this node runs it.

    Node 0 claims; the other nodes wait for its claim. Outside a Slurm job there is only one start.
    InfrastructureError when node 0 has not claimed within `timeout_s`.
    """
    start = JobStart.of(environment)
    if start is None:
        return allocation
    if node == 0:
        return _claim(run, allocation, start, timeout_s)
    order = _await_claim(run, allocation, start, timeout_s)
    if order is None or write_new(run.agent_claim(order, node), {"pid": os.getpid(), "time": time.time()}):
        return order
    _say_second(run, order, start, node)
    return None


def _say_second(run: RunDir, order: str, start: JobStart, node: int) -> None:
    """Say that this agent is the second of its node. Not an error: with srun --kill-on-bad-exit the first would end."""
    reason = (
        f"job {start.job} started a second agent on node {node} ({socket.gethostname()}), which ended at once: one "
        "agent forks all ranks of a node; find what asks for several tasks per node: the template, a variable like "
        "SLURM_NTASKS, or a plug-in of Slurm"
    )
    write_new(run.second_agent(order, node), {"time": time.time(), "reason": reason})
    print(f"harness.runtime.agent: not started: {reason}", flush=True)


def _claim(run: RunDir, allocation: str, start: JobStart, timeout_s: float) -> str | None:
    limit = time.monotonic() + timeout_s
    while True:
        claims = run.claims(allocation)
        if claims and (claims[-1].job, claims[-1].restart) == (start.job, start.restart):
            _say_second(run, claims[-1].order, start, node=0)
            return None
        refusal = claims[-1].refusal(start) if claims else None
        if run.cancelled.exists():
            refusal = "the run was cancelled"
        if refusal is not None:
            write_json(run.refused(allocation, start), {"time": time.time(), "reason": refusal})
            print(f"harness.runtime.agent: not started: {refusal}", flush=True)
            return None
        # Another name, so that agents of the first start, which may still run, keep reading their own order.
        order = f"{allocation}.restart{start.restart}" if claims else allocation
        claim = Claim(job=start.job, restart=start.restart, order=order, host=socket.gethostname(), time=time.time())
        # Read before the claim is written: afterwards the newest order would be this one, which does not exist yet.
        before = run.newest_order(allocation)
        # Creating a file that must not exist is the one test and set that NFS guarantees; the loser reads the claims
        # again.
        if write_new(run.claim(allocation, len(claims) + 1), claim):
            if claims:
                _write_second_order(run, before, order, start)
            return order
        if time.monotonic() > limit:  # until then, another start may have just written the claim
            raise InfrastructureError(f"{run.claim(allocation, len(claims) + 1)} exists but cannot be read")
        time.sleep(POLL_S)


def _write_second_order(run: RunDir, before: str, name: str, start: JobStart) -> None:
    """Write the work order of a second start: the cells that the earlier starts did not finish, each as a new attempt.

    The earlier attempts get a result, so that an agent of an earlier start that still runs starts none of them; but
    after the order is written, since this start may be ended at any point and a later one goes by what it finds.
    """
    first = read_work_order(run, before)
    cells = []
    cut_off = []
    for unfinished in first.cells:
        cell, earlier = unfinished.cell, run.attempt(unfinished.cell, unfinished.attempt)
        if earlier.result.exists():
            result = from_jsonable(CellResult, loads(text_of(earlier.result)))
            if not was_cut_off(result):
                continue
        cut_off.append(unfinished)
        number = run.new_attempt(cell, unfinished.attempt)
        write_atomic(run.attempt(cell, number).config, text_of(earlier.config))
        cells.append(CellAttempt(cell=cell, attempt=number))
    write_work_order(run, name, replace(first, cells=tuple(cells)))
    reason, now = started_again(start), time.time()
    for unfinished in cut_off:
        over = CellResult(
            cell=unfinished.cell, attempt=unfinished.attempt, status="error", reason=reason, started=now, finished=now
        )
        # write_new, since the earlier agent may have finished the attempt in the meantime: its result stands.
        write_new(run.attempt(unfinished.cell, unfinished.attempt).result, sealed(over))


def _await_claim(run: RunDir, allocation: str, start: JobStart, timeout_s: float) -> str | None:
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        if run.refused(allocation, start).exists():
            return None
        for claim in run.claims(allocation):
            # The claim comes before its order: between the two there is nothing to run yet.
            if (claim.job, claim.restart) == (start.job, start.restart) and run.submission(claim.order).exists():
                return claim.order
        time.sleep(POLL_S)
    raise InfrastructureError(
        f"the agent of node 0 has not claimed {allocation} within {timeout_s:.0f} s; see the log of its job step"
    )
