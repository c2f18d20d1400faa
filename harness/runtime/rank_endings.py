"""How the ranks of an attempt ended, from their records, exit codes and logs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.core.errors import STORAGE_EXIT, DiskFullError
from harness.core.run.record_file import write_record
from harness.core.run.records import CellResult, CellStatus, ProcessEnd, RankEnding, RankRecord
from harness.core.run.run_dir import AttemptDir, digest_of, temporary_beside, text_of
from harness.core.serialization import from_jsonable, loads
from harness.runtime.coordination import rendezvous
from harness.runtime.coordination.rendezvous import Abort
from harness.runtime.recording.errors import collective_in, stack_of
from harness.runtime.recording.flight_recorder import pending_collectives
from harness.runtime.recording.recorder import last_progress, progress_file

_UNWRITTEN = {
    DiskFullError.process_exit_code: "no space left on the disk for",
    STORAGE_EXIT: "a storage error prevented",
}


def rank_endings(
    attempt: AttemptDir, ranks: Iterable[int], exit_codes: Mapping[int, int], late: Mapping[int, float]
) -> list[RankEnding]:
    """Return how ranks ended; completes the records that ranks could not complete.

    `late`: rank still running at the deadline -> when the supervisor saw it, seconds since the epoch. Exceptions and
    crashes after that time are consequences of the deadline and do not count.
    """
    endings = []
    for rank in ranks:
        path = attempt.record(rank)
        ended: ProcessEnd = "missing"
        if path.exists():
            record = _record(path)
            raised_late = record.failure is not None and record.failure.time >= late.get(rank, math.inf)
            if raised_late:
                print(f"rank {rank} raised after the deadline: {record.failure}")
                record.ended, record.failure = "running", None
            # The rank was killed before it could write how it ended; its progress file is newer than its record.
            if record.ended == "running":
                record.ended = "deadline" if rank in late else "killed"
                record.progress = last_progress(path) or record.progress
                write_record(path, record)
            ended = record.ended
        # A rank of a lost node may still live, and write.
        digest = digest_of(path) if rank in exit_codes and path.exists() else ""
        ending = RankEnding(rank=rank, ended=ended, exit_code=exit_codes.get(rank), digest=digest)
        if ended == "deadline":
            ending.stack = _dumped(attempt.log(rank))
            pending = pending_collectives(attempt, rank)
            ending.flight = [str(collective) for collective in pending]
            # The stack names the collective that the main thread waits in; the flight recorder only those that NCCL has
            # queued.
            ending.hang = collective_in(ending.stack or []) or (pending[0].name if pending else None)
            ending.still_s = _still_s(path, late.get(rank))
        endings.append(ending)
    return endings


def cell_result(
    cell: str,
    number: int,
    attempt: AttemptDir,
    endings: list[RankEnding],
    troubles: list[str],
    started: float,
    *,
    deadline_s: float,
) -> CellResult:
    """Return the result of a cell: an error if a node or a file failed, else failed if a rank did not complete."""
    paths = {ending.rank: attempt.record(ending.rank) for ending in endings if ending.ended != "missing"}
    records = {rank: _record(path) for rank, path in paths.items()}
    failed = [ending for ending in endings if ending.ended != "completed"]
    for code, why in _UNWRITTEN.items():
        hit = [str(ending.rank) for ending in failed if ending.exit_code == code]
        troubles = [*troubles, *([f"{why} the record of rank {', '.join(hit)}"] if hit else [])]
    status: CellStatus = "error" if troubles else "failed" if failed else "completed"
    counted = f"{len(failed)} of {len(endings)} ranks did not complete"
    return CellResult(
        cell=cell,
        attempt=number,
        status=status,
        reason="" if status == "completed" else "; ".join([*([counted] if failed else []), *troubles]),
        first_failure_rank=_first_failure(attempt, records, failed),
        ranks=endings,
        started=started,
        finished=time.time(),
        steps_s=max((sum(step.time_s for step in record.steps) for record in records.values()), default=0.0),
        deadline_s=deadline_s,
    )


def _first_failure(attempt: AttemptDir, records: dict[int, RankRecord], failed: list[RankEnding]) -> int | None:
    """Return the rank that failed first.

    With several nodes, the one in abort.json, since the nodes' clocks may differ.
    """
    if not failed:
        return None
    abort = rendezvous.read(Abort, rendezvous.abort_file(attempt))
    if abort is not None and abort.rank is not None:
        return abort.rank
    raised = sorted((record.failure.time, rank) for rank, record in records.items() if record.failure)
    return raised[0][1] if raised else failed[0].rank


def _record(path: Path) -> RankRecord:
    return from_jsonable(RankRecord, loads(text_of(path)))


def _dumped(log: Path) -> list[str] | None:
    """Return the frames of a rank's last stack dump, innermost last; None when its log has none."""
    return stack_of(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else None


def _still_s(record: Path, seen_at: float | None) -> float | None:
    """Return the seconds without progress of a rank that was seen running at the deadline; None if unknown.

    Measured by the clock of the file system, which may differ from this node's.
    """
    path = progress_file(record)
    if seen_at is None or not path.exists():
        return None
    probe = temporary_beside(path)
    # A file beside it has the server's time, whatever the clock of this node says.
    probe.touch(exist_ok=False)
    now = probe.stat().st_mtime
    probe.unlink()
    return max(now - path.stat().st_mtime - (time.time() - seen_at), 0.0)
