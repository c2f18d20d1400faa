"""`--failed` takes the cells of the newest finished run of the same matrix that did not pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from harness.app.selection.failed import failed_cells
from harness.core.errors import InputError
from harness.core.outcomes import KnownFailure, Outcome, verdict_of
from harness.judge.report.render_json import render_json
from tests.sample_report import sample_report


def _run(parent: Path, run_id: str, outcomes: dict[str, Outcome]) -> None:
    report = sample_report()
    like = {cell.outcome: cell for cell in report.cells}
    passed = like[Outcome.PASS]
    made = ((name, outcome, like.get(outcome, passed)) for name, outcome in outcomes.items())
    known = {Outcome.XFAIL: KnownFailure.EXPECTED, Outcome.XPASS: KnownFailure.PASSES}
    cells = [
        replace(
            cell,
            id=f"{'-'.join(cell.layout.name_parts())}-{name}",
            axes={},
            outcome=outcome,
            control=None,
            reproduce="",
            reason="" if outcome is Outcome.PASS else "said",
            known=known.get(outcome, KnownFailure.NONE),
        )
        for name, outcome, cell in made
    ]
    counts = Counter(outcomes.values())
    verdict = verdict_of(counts, report.problems)
    report = replace(report, cells=cells, rejected=[], counts=counts, verdict=verdict)
    folder = parent / run_id
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    (folder / "report.json").write_text(render_json(replace(report, matrix="small", run_id=run_id)))


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text("name: small\nmatrix: {packing: reference}\n")
    return path


def test_the_newest_run_of_the_matrix_decides(matrix: Path, tmp_path: Path) -> None:
    _run(tmp_path / "r", "small-20260101T000000Z-0001", {"old": Outcome.FAIL})
    every = {"a": Outcome.PASS, "b": Outcome.FAIL, "c": Outcome.XFAIL, "d": Outcome.ERROR, "e": Outcome.XPASS}
    _run(tmp_path / "r", "small-20260102T000000Z-0002", every)
    _run(tmp_path / "r", "other-20260103T000000Z-0003", {"x": Outcome.FAIL})
    assert [name.rpartition("-")[2] for name in failed_cells(matrix, tmp_path / "r")] == ["b", "d", "e"]


def test_nothing_to_run_is_said(matrix: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished run of small"):
        failed_cells(matrix, tmp_path / "r")
    _run(tmp_path / "r", "small-20260101T000000Z-0001", {"a": Outcome.PASS})
    with pytest.raises(InputError, match="no cell failed in small-20260101T000000Z-0001"):
        failed_cells(matrix, tmp_path / "r")
