"""`harness shrink` with real training: a fault injected into a large cell, and a run whose bound no cell can meet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.cli import main
from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.identity import cell_id
from harness.core.cell.layout import Layout
from harness.core.outcomes import Finding, Lane, Outcome, Severity
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, ReportCell, ReportRejected
from harness.core.run.run_dir import RunDir
from harness.core.tolerances import ToleranceOverrides
from harness.faults.spec import MODEL
from harness.triage.shrink.command import shrink_cell
from harness.triage.shrink.search import Answer, Kind
from harness.triage.shrink.trials import answer_of, run_cells
from tests.cli.conftest import harness, only_run, write_matrix
from tests.cli.runs import simulated_run

TIGHT = """\
name: tight
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 2, seq_length: 32}
documents: {mode: file, lengths: [9, 20]}
matrix: {tp: 2, packing: reference}
checks: {canaries: none, numerics: {document_loss: 1.0e-12}}
"""
FAULT = "middle-stage-tp-ranks-with-garbage"
LARGE = CellConfig(
    layout=Layout(tp=2, pp=4),
    data_path="reference",
    model=replace(MODEL, layers=4),
    train=TrainConfig(steps=1, global_batch=2, seq_length=4),
    documents=DocumentsConfig(mode="file", lengths=(1, 2)),
    deadline_s=20,
    fault=FAULT,
)


def run_of(folder: Path, *configs: CellConfig) -> RunDir:
    """A run of cells without a matrix."""
    directory = RunDir(folder / "large")
    bounds = ToleranceOverrides()
    run_cells(directory, configs, stacks={}, tolerances=bounds, matrix_file="large.yaml", command=["harness", "run"])
    return directory


@pytest.mark.train
def test_a_fault_of_middle_stages_ends_at_two_tensor_ranks_and_three_stages(tmp_path: Path) -> None:
    directory = run_of(tmp_path, LARGE)
    shrunk = shrink_cell(directory, f"*{FAULT}", rounds=8)
    end = shrunk.smallest.config
    assert end is not None
    assert shrunk.smallest.minimal
    assert (end.layout.tp, end.layout.pp, end.layout.world_size) == (2, 3, 6)
    assert (end.model.layers, len(end.documents_of(0)), end.train.steps) == (3, 1, 1)
    assert (shrunk.cell.outcome, shrunk.cell.id) == (Outcome.FAIL, cell_id(end))
    needs = {need.text: need.without for need in shrunk.smallest.needs}
    assert needs["tp >= 2"] == "with tp 1 it passes"
    assert needs["pp >= 3"].startswith("with pp 2 it ")
    assert f"The fault {FAULT} was injected" in (shrunk.folder / "smallest.yaml").read_text()


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which a run failed and was shrunk, and the output of the shrink."""
    folder = tmp_path_factory.mktemp("tight")
    assert harness("run", write_matrix(folder, TIGHT), cwd=folder).returncode == 1
    done = harness("shrink", "latest", "tp2-*", "--rounds", "1", "--issue", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def smallest_of(folder: Path) -> Path:
    (path,) = only_run(folder / "reports").glob("shrink/*/smallest.yaml")
    return path


@pytest.mark.train
@pytest.mark.smoke
def test_the_smallest_matrix_fails_in_the_same_lane_and_check(tight: tuple[Path, str]) -> None:
    folder, said = tight
    matrix = smallest_of(folder)
    assert f"reproduce: harness run {matrix.relative_to(folder)}" in said
    done = harness("run", matrix, "--run-dir", "again", cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((only_run(folder / "again") / "report.json").read_text())
    (failed,) = [cell for cell in report["cells"] if "reference" in cell["id"]]
    assert failed["outcome"] == "FAIL"
    assert "document_loss" in {finding["check"] for finding in failed["findings"]}
    assert json.loads((matrix.parent / "shrink.json").read_text())["smallest"]["config"]["train"]["steps"] == 1


@pytest.mark.train
def test_a_shrink_goes_on_from_what_it_has_tried(tight: tuple[Path, str]) -> None:
    folder, said = tight
    rounds = sorted(smallest_of(folder).parent.glob("round-*"))
    again = harness("shrink", "latest", "tp2-*", "--rounds", "1", "--issue", cwd=folder)
    assert again.returncode == 0
    assert sorted(smallest_of(folder).parent.glob("round-*")) == rounds
    assert said.splitlines()[-4:] == again.stdout.splitlines()[-4:]


@pytest.mark.train
def test_the_issue_holds_no_path_of_the_machine(tight: tuple[Path, str]) -> None:
    folder, _ = tight
    text = smallest_of(folder).with_name("issue.md").read_text()
    assert str(folder) not in text
    assert str(Path.home()) not in text
    assert "document_loss: 1.0e-12" in text.replace("1e-12", "1.0e-12")


@pytest.mark.train
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tp9-*"], "no such cell"),
        (["tp2-*", "--check", "isolation"], "none of that check"),
    ],
)
def test_only_a_failed_cell_can_be_shrunk(
    tight: tuple[Path, str], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(only_run(tight[0] / "reports"))
    assert main(["shrink", run, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_cell_that_passed_cannot_be_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(simulated_run(tmp_path).root), "tp2-*"]) == 2
    assert "tp2-*: no cell failed (found tp2-pp1-cp1-sft PASS;" in capsys.readouterr().err


WANTED = Finding(lane=Lane.METADATA, check="params_present", message="none", fault_class="A", where={"stage": 3})


def judged(outcome: Outcome, *findings: Finding, reason: str = "") -> ReportCell:
    values: dict[str, Any] = {"axes": {}, "layout": Layout(), "lanes": {}, "timing": {}, "reproduce": ""}
    return ReportCell(id="c", outcome=outcome, findings=list(findings), reason=reason, **values)


def report_of(*cells: ReportCell) -> Report:
    rejected = ReportRejected(id="r", axes={}, rule="stack", reason="no such path")
    values: dict[str, Any] = {"run_id": "", "matrix": "", "matrix_file": "", "counts": {}, "provenance": Provenance()}
    return Report(verdict="fail", timing={}, cells=list(cells), rejected=[rejected], **values)


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        (judged(Outcome.FAIL, replace(WANTED, where={"stage": 1})), Kind.SAME, "fails the same way"),
        (judged(Outcome.FAIL, replace(WANTED, check="other"), WANTED), Kind.SAME, "fails the same way"),
        (judged(Outcome.FAIL, replace(WANTED, fault_class="B")), Kind.DIFFERS, "metadata, params_present: B"),
        (judged(Outcome.PASS, replace(WANTED, severity=Severity.WARNING)), Kind.PASSES, "passes"),
        (judged(Outcome.ERROR, WANTED, reason="no disk\nat all"), Kind.UNUSABLE, "cannot be judged: no disk"),
    ],
)
def test_an_answer_is_the_same_only_by_lane_check_and_class(cell: ReportCell, kind: Kind, text: str) -> None:
    answer = answer_of(report_of(cell), "c", WANTED)
    assert answer.kind is kind
    assert text in answer.text


def test_a_rejected_cell_is_no_smaller_one() -> None:
    assert answer_of(report_of(), "r", WANTED) == Answer(kind=Kind.UNUSABLE, text="is rejected: no such path")
