from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.errors import InputError
from harness.core.run.records import CellResult, RankEnding, RankRecord
from harness.core.run.run_dir import RunDir, write_json
from harness.core.serialization import to_jsonable
from harness.judge.failures.classification import JobEnding
from harness.runs.evidence_files import LOG_TAIL_BYTES, read_cell, read_plan, read_result
from tests.judge.simulator import config_of, run_of
from tests.judge.written import seal


def _write(run: RunDir, cell: str, status: str, number: int = 1, **ended: str) -> None:
    """Write an attempt whose ranks r0, r1 ... ended as given, each with a log."""
    attempt = run.attempt(cell, number)
    for rank, (_, how) in enumerate(sorted(ended.items())):
        attempt.log(rank).parent.mkdir(parents=True, exist_ok=True)
        attempt.log(rank).write_text(f"begin {'x' * LOG_TAIL_BYTES}\nlast words of {cell} {rank}\n", encoding="utf-8")
        if how != "missing":
            place = Coordinates(pp=0, dp=0, cp=0, tp=rank)
            write_json(attempt.record(rank), RankRecord(cell=cell, rank=rank, place=place, ended=how))
    ranks = [RankEnding(rank=rank, ended=how) for rank, (_, how) in enumerate(sorted(ended.items()))]
    write_json(attempt.result, CellResult(cell=cell, attempt=number, status=status, ranks=ranks))
    seal(attempt)


def test_only_the_ends_of_the_logs_of_failed_ranks_of_failed_cells_are_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _write(run, "good", "completed", r0="completed")
    _write(run, "bad", "failed", r0="completed", r1="killed", r2="missing")
    good, bad = read_cell(run, "good", {}), read_cell(run, "bad", {})
    assert good.logs == {}
    assert set(bad.logs) == {1, 2}
    assert set(bad.records) == {0, 1}
    tail = bad.logs[1]
    assert len(tail.text) == LOG_TAIL_BYTES
    assert tail.text.endswith("last words of bad 1\n")
    assert tail.written == run.attempt("bad").log(1).stat().st_mtime


def test_a_cell_without_files_has_only_the_ending_of_its_job(tmp_path: Path) -> None:
    job = JobEnding(state="NODE_FAIL")
    found = read_cell(RunDir(tmp_path), "never-ran", {"never-ran": job})
    assert (found.records, found.result, found.logs, found.retried, found.job) == ({}, None, {}, False, job)


def test_the_newest_attempt_counts(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _write(run, "again", "failed", r0="killed")
    _write(run, "again", "completed", number=2, r0="completed")
    found = read_cell(run, "again", {})
    assert found.retried
    assert found.result is not None and found.result.attempt == 2
    assert found.records[0].ended == "completed"


def test_earlier_attempts_are_read_too(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _write(run, "again", "failed", r0="killed", r1="missing")
    run.attempt("again", 2).config.parent.mkdir()
    run.attempt("again", 2).result.write_text("", encoding="utf-8")
    _write(run, "again", "completed", number=3, r0="completed")
    found = read_cell(run, "again", {})
    assert found.damaged == []
    first, second = found.earlier
    assert (first.attempt, list(first.records), set(first.logs), first.damaged) == (1, [0], {0, 1}, [])
    assert first.result is not None and first.result.status == "failed"
    assert (second.attempt, second.records, second.result) == (2, {}, None)
    assert [problem.partition(":")[0] for problem in second.damaged] == ["result.json cannot be read"]


def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _write(run, "bad", "completed", r0="completed")
    run.attempt("bad").record(0).write_text('{"cell": 3}', encoding="utf-8")
    found = read_cell(run, "bad", {})
    assert found.records == {}
    assert found.damaged == ["rank-00000.json cannot be read: RankRecord.cell: expected str, found 3"]


@pytest.mark.parametrize("change", [lambda plan: plan.pop("run_id"), lambda plan: plan.update(new_field=1)])
def test_a_plan_with_other_fields_is_attributed_to_another_version(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    run = RunDir(tmp_path)
    plan, _ = run_of([config_of("sft")])
    values = to_jsonable(plan)
    values["provenance"] |= {"harness": "0.9", "harness_commit": "abc123"}
    change(values)
    write_json(run.plan, values)
    written = "another version of the harness, 0.9, commit abc123; judge it with the version that ran it"
    with pytest.raises(InputError, match=written):
        read_plan(run)


def test_the_result_of_a_cell_that_resumed_is_that_of_the_part_that_failed(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt("cell")
    write_json(attempt.result, CellResult(cell="cell", attempt=1, status="completed"))
    later = CellResult(cell="cell", attempt=1, status="completed")
    for later.status in ("completed", "failed"):
        write_json(attempt.resumed.result, later)
        result = read_result(RunDir(tmp_path), "cell")
        assert result is not None
        assert result.status == later.status
