from __future__ import annotations

from pathlib import Path

from harness.edge.evidence_files import LOG_TAIL_BYTES, Found, read_log_tails
from harness.edge.run_dir import RunDir
from harness.words.layout import Coordinates
from harness.words.records import CellResult, RankRecord


def _found(run: RunDir, cell: str, status: str, **ended: str) -> Found:
    """An attempt whose ranks r0, r1 ... ended so, each with a log."""
    attempt, records = run.attempt(cell), {}
    for rank, (_, how) in enumerate(sorted(ended.items())):
        attempt.log(rank).parent.mkdir(parents=True, exist_ok=True)
        attempt.log(rank).write_text(f"begin {'x' * LOG_TAIL_BYTES}\nlast words of {cell} {rank}\n", encoding="utf-8")
        if how != "missing":
            records[rank] = RankRecord(cell=cell, rank=rank, place=Coordinates(pp=0, dp=0, cp=0, tp=rank), ended=how)
    return records, CellResult(cell=cell, attempt=1, status=status)


def test_only_the_ends_of_the_logs_of_failed_ranks_of_failed_cells_are_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    found = {
        "good": _found(run, "good", "completed", r0="completed"),
        "bad": _found(run, "bad", "failed", r0="completed", r1="killed", r2="missing"),
    }
    tails = read_log_tails(run, found)
    assert set(tails) == {"bad"}
    assert set(tails["bad"]) == {1, 2}
    tail = tails["bad"][1]
    assert len(tail.text) == LOG_TAIL_BYTES
    assert tail.text.endswith("last words of bad 1\n")
    assert tail.written == run.attempt("bad").log(1).stat().st_mtime


def test_a_cell_without_logs_or_result_has_no_tails(tmp_path: Path) -> None:
    assert read_log_tails(RunDir(tmp_path), {"never-ran": ({}, None)}) == {"never-ran": {}}
