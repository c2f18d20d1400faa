"""A run with `--fault` cannot be taken for a real one: every output names the fault, and no baseline has the run."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.selection import failed_cells
from harness.cli.cli import main
from harness.core.errors import InputError
from harness.core.run.run_dir import RunDir, write_atomic, write_json
from harness.core.run.run_plan import sealed_text
from harness.runs.evidence_files import read_plan
from tests.cli.runs import simulated_run

FAULT = "attention-ignores-documents"
NAME = "smoke-20260102T000000Z-0002"
SAID = f"Injected on purpose: {FAULT}, in 1 cell of 3"


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A judged run, one of whose cells has the fault in its configuration."""
    monkeypatch.delenv("HARNESS_HISTORY", raising=False)
    run = simulated_run(tmp_path / "reports", NAME)
    plan = read_plan(run)
    cells = [replace(c, config=replace(c.config, fault=FAULT)) if "sft" in c.id else c for c in plan.expansion.cells]
    for cell in cells:
        write_json(run.attempt(cell.id).config, cell.config)
    write_atomic(run.plan, sealed_text(replace(plan, expansion=replace(plan.expansion, cells=tuple(cells)))))
    assert main(["report", str(run.root)]) == 0
    return run


def test_every_report_names_the_fault(broken: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", str(broken.root)]) == 0
    said = capsys.readouterr().out
    assert SAID in said
    assert "of which 0 did not pass" in said
    assert "PASS (fault injected): 3 PASS" in said
    assert broken.report("report.md").read_text().startswith("# PASS (fault injected): smoke")
    assert SAID in broken.report("report.md").read_text()
    page = broken.report("report.html").read_text()
    assert "<title>PASS (fault injected)" in page
    assert "✓ Passed (fault injected)</h1>" in page
    assert SAID in page
    assert f'<property name="faults" value="{FAULT}" />' in broken.report("junit.xml").read_text()
    report = json.loads(broken.report("report.json").read_text())
    assert report["faults"] == [FAULT]
    (cell,) = [cell for cell in report["cells"] if cell["fault"]]
    words = shlex.split(cell["reproduce"])
    assert words[words.index("--fault") + 1] == FAULT
    assert FAULT not in words[words.index("--only") + 1]  # cells are chosen before they are broken


def test_no_baseline_has_the_run(broken: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = broken.root.parent
    assert not (reports / "history.sqlite").exists()
    capsys.readouterr()
    assert main(["history", "import", str(broken.root), "--run-dir", str(reports)]) == 2
    assert "the history holds no runs with injected faults" in capsys.readouterr().err
    matrix = tmp_path / "smoke.yaml"
    matrix.write_text("name: smoke\nmatrix: {packing: reference}\n")
    with pytest.raises(InputError, match="no finished run of smoke"):
        failed_cells(matrix, reports)


def test_lists_of_runs_name_the_fault(broken: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    reports = broken.root.parent
    capsys.readouterr()
    assert main(["list", "--run-dir", str(reports)]) == 0
    assert f"{NAME}  finished     PASS (fault injected): 3 PASS" in capsys.readouterr().out
    assert main(["index", str(reports)]) == 0
    page = (reports / "index.html").read_text()
    assert "fault injected</small>" in page
    assert "No finished runs</h1>" in page  # of a matrix: this one decides nothing


def test_a_comparison_pairs_the_cell_with_the_sound_one(broken: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    sound = simulated_run(broken.root.parent, "smoke-20260101T000000Z-0001")
    assert main(["report", str(sound.root), "--no-history"]) == 0
    capsys.readouterr()
    assert main(["compare", str(sound.root), str(broken.root)]) == 0
    assert f"note: {NAME}: {SAID}" in capsys.readouterr().out


def test_no_issue_is_written_about_it(broken: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(broken.root), "*sft*", "--issue"]) == 2
    assert f"{FAULT} was injected into this run: there is no bug to report" in capsys.readouterr().err
