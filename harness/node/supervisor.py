"""One attempt of one cell: forked from the agent, it forks the ranks through torch elastic and sums up how they ended.

Only elastic's process layer is used. Its agent keeps a store with C++ threads in the process that forks, and a rank
forked at the wrong moment then hangs in its first store call (seen in 1 of 46 cells). Here the supervisor binds the
port, and rank 0 serves the store on that socket.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import time
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

from harness.edge.run_dir import AttemptDir, write_json
from harness.node.process import die_with, log_to
from harness.node.rank import rank_main
from harness.node.recorder import last_progress
from harness.words.cell import CellConfig
from harness.words.jsonable import from_jsonable, loads
from harness.words.records import CellResult, RankEnding, RankRecord

DUMP_GRACE_S = 1.0  # between the stack dump at the deadline and the kill
_COLLECTIVE = re.compile(r'File "[^"]*(?:distributed_c10d|p2p_communication)\.py", line \d+ in (\w+)')


class _Deadline:
    """Kills the ranks when the time is up; elastic then sees them fail."""

    def __init__(self) -> None:
        self.hit = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.hit = True
        for child in multiprocessing.active_children():
            child.kill()


def supervise(attempt_root: str, cell: str, number: int, config: CellConfig, agent: int) -> None:
    """Run the cell's ranks on this node and write result.json. Runs in a process of its own session.

    `agent` is the pid of the parent.
    """
    die_with(agent)
    os.setsid()
    attempt = AttemptDir(Path(attempt_root))
    log_to(attempt.root / "log" / "supervisor.log")
    started = time.time()
    deadline = _Deadline()
    signal.signal(signal.SIGALRM, deadline)
    signal.setitimer(signal.ITIMER_REAL, config.deadline_s + DUMP_GRACE_S)
    exit_codes = _launch(attempt_root, cell, config, started + config.deadline_s)
    signal.setitimer(signal.ITIMER_REAL, 0)
    records = _settle(attempt, config, exit_codes, deadline.hit)
    write_json(attempt.result, _result(cell, number, config, records, exit_codes, started, attempt))


def _launch(attempt_root: str, cell: str, config: CellConfig, deadline_at: float) -> dict[int, int]:
    """Fork and wait for the ranks; exit code of every rank. Elastic ends the others once one has failed."""
    world_size = config.layout.world_size
    ranks = range(world_size)
    with socket.create_server(("127.0.0.1", 0), backlog=world_size) as listener:
        address, port = listener.getsockname()
        common = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        common |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        processes = start_processes(
            name=cell,
            entrypoint=rank_main,
            args={rank: (attempt_root, cell, config, deadline_at, listener.fileno(), os.getpid()) for rank in ranks},
            envs={rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in ranks},
            logs_specs=DefaultLogsSpecs(),
            start_method="fork",
        )
    children = {child.pid: child for child in multiprocessing.active_children()}
    processes.wait(period=0.05)
    return {rank: children[pid].exitcode or 0 for rank, pid in processes.pids().items()}


def _settle(
    attempt: AttemptDir, config: CellConfig, exit_codes: dict[int, int], deadline_hit: bool
) -> dict[int, RankRecord]:
    """Read the records of the dead ranks and mark those that could not say themselves how they ended."""
    records = {}
    for rank in range(config.layout.world_size):
        path = attempt.record(rank)
        if not path.exists():
            continue
        record = from_jsonable(RankRecord, loads(path.read_text(encoding="utf-8")))
        if record.ended == "running":
            record.ended = "deadline" if deadline_hit else "killed"
            record.progress = last_progress(path) or record.progress
            write_json(path, record)
        records[rank] = record
    return records


def _result(
    cell: str,
    number: int,
    config: CellConfig,
    records: dict[int, RankRecord],
    exit_codes: dict[int, int],
    started: float,
    attempt: AttemptDir,
) -> CellResult:
    endings = []
    for rank in range(config.layout.world_size):
        ended = records[rank].ended if rank in records else "missing"
        hang = _hung_in(attempt.log(rank)) if ended == "deadline" else None
        endings.append(RankEnding(rank=rank, ended=ended, exit_code=exit_codes.get(rank), hang=hang))
    failed = [ending for ending in endings if ending.ended != "completed"]
    raised = sorted((record.failure.time, rank) for rank, record in records.items() if record.failure)
    first = raised[0][1] if raised else (failed[0].rank if failed else None)
    return CellResult(
        cell=cell,
        attempt=number,
        status="failed" if failed else "completed",
        reason=f"{len(failed)} of {len(endings)} ranks did not complete" if failed else "",
        first_failure_rank=first,
        ranks=endings,
        started=started,
        finished=time.time(),
        steps_s=max((sum(step.time_s for step in record.steps) for record in records.values()), default=0.0),
    )


def _hung_in(log: Path) -> str | None:
    """The innermost collective or pipeline function in the stack dump of a rank's log."""
    found = _COLLECTIVE.search(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else None
    return found.group(1) if found else None
