"""An impossible value in one file of a run is an ERROR of its cell; other cells are judged, and all reports written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.cli.cli import main
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED, Outcome
from harness.reporting.render_json import read_report
from tests.judge.simulator import config_of, run_of
from tests.judge.written import write_run

YEAR_9999 = 253402300799.0
CHANGES: dict[str, tuple[dict[str, Any], str]] = {  # fields -> values, and a part of the reason
    "a size in words": ({"memory_limit_bytes": "24 GiB"}, "rank-00000.json was changed after the attempt"),
    "an end in the year 9999": ({"finished": YEAR_9999}, "result.json was changed after it was written"),
    "an end beyond floats": ({"finished": 10**400}, "a whole number of more than 64 bits"),
    "a peak of more than 64 bits": ({"peak_memory_bytes": 10**300}, "a whole number of more than 64 bits"),
}


def _changed(value: Any, change: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: change.get(key, _changed(item, change)) for key, item in value.items()}
    return [_changed(item, change) for item in value] if isinstance(value, list) else value


def _simulated(folder: Path) -> tuple[str, str]:
    """Write a run of a control and a cell; returns their ids."""
    plan, evidence = run_of([config_of("reference", tp=2)])
    write_run(folder, plan, evidence)
    first, second = (cell.id for cell in plan.expansion.cells)
    return first, second


def _judged(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["report", str(run), "--no-history"])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return code, shown.out


def test_the_simulated_run_passes_when_nothing_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _simulated(tmp_path / "run")
    code, shown = _judged(tmp_path / "run", capsys)
    assert code == EXIT_PASS, shown


@pytest.mark.parametrize("name", CHANGES)
def test_an_impossible_value_is_an_error_of_its_cell_and_all_reports_are_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, (change, words) = tmp_path / "run", CHANGES[name]
    kept, hurt = _simulated(run)
    files = [*run.glob(f"cells/{hurt}/attempt-*/result.json"), *run.glob(f"cells/{hurt}/attempt-*/ranks/*.json")]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    for file, text in texts.items():
        file.write_text(json.dumps(_changed(json.loads(text), change)), encoding="utf-8")
    assert [file for file, text in texts.items() if json.loads(text) != json.loads(file.read_text(encoding="utf-8"))]
    code, shown = _judged(run, capsys)
    assert code == EXIT_UNDECIDED, shown
    report = read_report((run / "report.json").read_text(encoding="utf-8"))
    cells = {cell.id: cell for cell in report.cells}
    assert (cells[kept].outcome, cells[hurt].outcome) == (Outcome.PASS, Outcome.ERROR)
    assert words in cells[hurt].reason
    assert len(cells[hurt].reason) < 300
    assert hurt in (run / "report.md").read_text(encoding="utf-8")
    assert hurt in (run / "report.html").read_text(encoding="utf-8")
    assert ElementTree.parse(run / "junit.xml").find(".//error") is not None
