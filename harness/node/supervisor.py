"""One attempt of one cell: forked from the agent, it forks the ranks through torch elastic and sums up how they ended."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness.edge.run_dir import AttemptDir, write_json
from harness.node.rank import rank_main
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


def supervise(attempt_root: str, cell: str, number: int, config: CellConfig) -> None:
    """Run the cell's ranks on this node and write result.json. Runs in a process of its own session."""
    os.setsid()
    attempt = AttemptDir(Path(attempt_root))
    _log_to(attempt.root / "log" / "supervisor.log")
    started = time.time()
    deadline = _Deadline()
    signal.signal(signal.SIGALRM, deadline)
    signal.setitimer(signal.ITIMER_REAL, config.deadline_s + DUMP_GRACE_S)
    exit_codes = _launch(attempt_root, cell, config, started + config.deadline_s)
    signal.setitimer(signal.ITIMER_REAL, 0)
    records = _settle(attempt, config, exit_codes, deadline.hit)
    write_json(attempt.result, _result(cell, number, config, records, exit_codes, started, attempt))


def _launch(attempt_root: str, cell: str, config: CellConfig, deadline_at: float) -> dict[int, int]:
    """Fork and wait for the ranks; exit codes of those that elastic reports as failed."""
    world_size = config.layout.world_size
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        run_id=cell,
        max_restarts=0,
        start_method="fork",
        monitor_interval=0.05,
    )
    try:
        elastic_launch(launch, rank_main)(attempt_root, cell, config, deadline_at)
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


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


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
