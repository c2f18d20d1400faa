"""Whoever changes a file of an attempt after its end, and not also result.json's digests and seal, is found out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.run.records import CellResult, sealed
from harness.core.run.run_dir import AttemptDir, RunDir, text_of, write_json
from harness.core.serialization import from_jsonable, loads
from harness.runs.evidence_files import read_cell
from tests.judge.simulator import config_of, run_of
from tests.judge.written import write_run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, str]:
    """A run on disk, and its cell of two ranks that is compared with the oracle."""
    plan, evidence = run_of([config_of("reference", tp=2)])
    return write_run(tmp_path_factory.mktemp("written"), plan, evidence), plan.expansion.cells[-1].id


@pytest.fixture
def cell(written: tuple[RunDir, str], tmp_path: Path) -> tuple[RunDir, str]:
    run, name = written
    shutil.copytree(run.root, tmp_path / "run")
    return RunDir(tmp_path / "run"), name


def attempt_of(cell: tuple[RunDir, str]) -> AttemptDir:
    return cell[0].attempt(cell[1])


def damage(cell: tuple[RunDir, str]) -> str:
    """The first problem of the cell's files; empty if there is none."""
    return next(iter(read_cell(*cell, {}).damaged), "")


def changed(attempt: AttemptDir, **fields: object) -> None:
    """Write another result with a seal that fits."""
    result = from_jsonable(CellResult, loads(text_of(attempt.result)))
    write_json(attempt.result, sealed(replace(result, **fields)))  # type: ignore[arg-type]


def test_files_as_they_were_written_are_not_damaged(cell: tuple[RunDir, str]) -> None:
    assert damage(cell) == ""


@pytest.mark.parametrize("file", ["result.json", "oracle.json", "ranks/rank-00000.json", "ranks/rank-00001.json"])
def test_a_change_of_any_byte_is_seen(file: str, cell: tuple[RunDir, str]) -> None:
    path = attempt_of(cell).root / file
    whole = path.read_bytes()
    for place in range(0, len(whole), max(len(whole) // 50, 1)):
        digit = b"8" if whole[place : place + 1] == b"7" else b"7"
        path.write_bytes(whole[:place] + digit + whole[place + 1 :])
        assert file.rpartition("/")[2] in damage(cell), place


def test_a_changed_number_is_named_with_both_digests(cell: tuple[RunDir, str]) -> None:
    path = attempt_of(cell).record(1)
    path.write_text(path.read_text(encoding="utf-8").replace('"grad_norm": ', '"grad_norm": 1'), encoding="utf-8")
    assert damage(cell).startswith("rank-00001.json was changed after the attempt: its SHA-256 is ")


@pytest.mark.parametrize("file", ["oracle.json", "ranks/rank-00001.json"])
def test_a_file_that_was_removed_is_missing(file: str, cell: tuple[RunDir, str]) -> None:
    (attempt_of(cell).root / file).unlink()
    assert damage(cell) == f"{file.rpartition('/')[2]}, which result.json has the digest of, is missing"


def test_a_record_that_was_added_is_not_of_a_completed_attempt(cell: tuple[RunDir, str]) -> None:
    attempt = attempt_of(cell)
    text = attempt.record(1).read_text(encoding="utf-8")
    attempt.record(2).write_text(text.replace('"rank": 1', '"rank": 2'), encoding="utf-8")
    assert damage(cell).startswith("rank-00002.json is not of the attempt")


def test_a_failed_attempt_is_sealed_too(cell: tuple[RunDir, str]) -> None:
    changed(attempt_of(cell), status="failed", reason="1 of 2 ranks did not complete")
    assert damage(cell) == ""
    attempt_of(cell).record(0).write_text(attempt_of(cell).record(1).read_text(encoding="utf-8"), encoding="utf-8")
    assert damage(cell) == "rank-00001.json is the record of rank 1" or "rank-00000.json" in damage(cell)


def test_a_number_that_is_whole_is_sealed_as_it_is_read(cell: tuple[RunDir, str]) -> None:
    """The steps of ranks that ran none take 0 s, not 0.0."""
    changed(attempt_of(cell), steps_s=0)
    assert damage(cell) == ""


def test_a_rank_of_a_lost_node_may_write_later(cell: tuple[RunDir, str]) -> None:
    """Its supervisor did not see the process end, so it gave no digest."""
    result = from_jsonable(CellResult, loads(text_of(attempt_of(cell).result)))
    ranks = [replace(ending, digest="") for ending in result.ranks]
    changed(attempt_of(cell), status="error", reason="node 1 sent no heartbeats and wrote no result", ranks=ranks)
    assert damage(cell) == ""


def test_a_result_that_somebody_wrote_by_hand_has_no_seal(cell: tuple[RunDir, str]) -> None:
    path = attempt_of(cell).result
    path.write_text(path.read_text(encoding="utf-8").replace('"reason": ""', '"reason": "fine"'), encoding="utf-8")
    assert damage(cell).startswith("result.json was changed after it was written")
