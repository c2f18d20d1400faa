"""From a matrix file to reports and an exit code, with real training."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.outcomes import Lane
from harness.core.run.events import Loaded, Started, read_events
from harness.core.run.run_dir import AttemptDir, write_atomic
from harness.core.run.run_plan import RunPlan, sealed_text
from harness.core.serialization import from_jsonable
from harness.history.database import opened
from harness.history.trends import run_row
from harness.reporting.render_json import read_report
from tests.cli.conftest import MATRIX, harness, only_run, write_matrix
from tests.judge.written import seal

pytestmark = pytest.mark.train
SECRET = "hunter2-hunter2"
FILES = ("report.json", "junit.xml", "report.md", "report.html", "plan.json", "matrix.resolved.yaml", "events.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A finished run: its directory and what the command printed."""
    folder = tmp_path_factory.mktemp("app")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", SECRET)
        done = harness("run", write_matrix(folder), cwd=folder)
    return only_run(folder / "reports"), done


@pytest.fixture
def copy(finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> Path:
    """A copy of the run directory that a test may damage."""
    return Path(shutil.copytree(finished[0], tmp_path / "reports" / finished[0].name))


def _record(run: Path, cell: str, rank: int) -> Path:
    (root,) = (run / "cells").glob(f"{cell}-*")
    return root / "attempt-1" / "ranks" / f"rank-{rank:05d}.json"


@pytest.mark.smoke
def test_a_clean_run_passes_and_says_so(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run, done = finished
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: 5 PASS" in done.stdout
    assert "exit code 0" in done.stdout
    assert all((run / name).stat().st_size for name in FILES)


def test_the_agent_had_imported_when_its_run_was_planned(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    events = read_events(finished[0] / "events.jsonl")
    (began,) = (event for event in events if isinstance(event, Started))
    (loaded,) = (event for event in events if isinstance(event, Loaded))
    assert 0 < loaded.time - began.time < loaded.import_s


def test_no_secret_of_the_environment_is_written_anywhere(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run, done = finished
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 40
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in done.stdout + done.stderr


def test_agents_end_without_reports_of_leaks(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    (log,) = (finished[0] / "submissions").glob("*.log")
    assert [line for line in log.read_text().splitlines() if "leak" in line] == []


def test_the_report_follows_the_contract(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    report = json.loads((finished[0] / "report.json").read_text())
    assert (report["schema_version"], report["verdict"], report["run_id"]) == (2, "pass", finished[0].name)
    assert report["counts"]["PASS"] == len(report["cells"]) == 5
    for cell in report["cells"]:
        assert {"id", "axes", "outcome", "lanes", "findings", "timing", "reproduce"} <= set(cell)
        assert cell["lanes"] == {"metadata": "pass", "numerics": "pass", "throughput": "skip"}
    proofs = report["provenance"]["imports"]
    assert any(name.startswith("megatron.core ") for name in proofs)


def test_junit_has_one_testcase_per_cell(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cases = ET.parse(finished[0] / "junit.xml").getroot().findall(".//testcase")
    assert len(cases) == 5


def test_a_run_is_in_the_history_beside_it(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    with opened(finished[0].parent / "history.sqlite", write=False) as history:
        past = history.cell_histories("small", "cpu", "9999")
    assert {one.run_id for one in past.values()} == {finished[0].name}
    assert {name: one.outcome for name, one in past.items()}["tp2-pp2-cp1-sft"] == "PASS"


def test_a_history_that_cannot_be_written_changes_no_verdict(copy: Path) -> None:
    nowhere = copy / "plan.json" / "history.sqlite"
    done = harness("report", copy, cwd=copy.parent, env={"HARNESS_HISTORY": str(nowhere)})
    assert done.returncode == 0
    assert f"harness: {copy.name} is not recorded in the history: " in done.stderr
    without = harness("report", copy, "--no-history", cwd=copy.parent, env={"HARNESS_HISTORY": str(nowhere)})
    assert without.returncode == 0
    assert without.stderr.splitlines() == ["judging 5 cells", "writing the reports"]


def _seeded(run: Path, factor: float) -> Path:
    """Make a run compare its steps with ten earlier green runs whose steps took `factor` times as long."""
    row = run_row(read_report((run / "report.json").read_text()))
    file = run.parent / "history.sqlite"
    with opened(file, write=True) as history:
        for night in range(10):
            noise = factor * (1 + 0.002 * night)
            cells = tuple(
                replace(cell, metrics={"step_busy_s": cell.metrics["step_busy_s"] * noise}) for cell in row.cells
            )
            started = f"2026-01-{night + 1:02d}T03:00:00Z"
            history.record(replace(row, run_id=f"night-{night}", started=started, cells=cells), run)
    plan = json.loads((run / "plan.json").read_text())
    plan |= {"history": {"runs": 10, "since": ""}}
    plan["tolerances"]["throughput"] = {"slower_than_history": 1.15}
    write_atomic(run / "plan.json", sealed_text(from_jsonable(RunPlan, plan)))
    return file


def test_steps_as_long_as_in_earlier_runs_pass_and_say_so(copy: Path) -> None:
    _seeded(copy, 1.0)
    done = harness("report", copy, cwd=copy.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report((copy / "report.json").read_text())
    assert {cell.lanes[Lane.THROUGHPUT].value for cell in report.cells} == {"pass"}
    assert {(ratio.what, ratio.rounds) for cell in report.cells for ratio in cell.throughput.ratios} == {
        ("over earlier runs", 10)
    }


def test_steps_longer_than_in_earlier_runs_fail_and_stay_so_without_the_history(copy: Path) -> None:
    file = _seeded(copy, 1 / 3)
    for _ in range(2):
        done = harness("report", copy, "--no-history", cwd=copy.parent)
        assert done.returncode == 1
        report = read_report((copy / "report.json").read_text())
        assert [cell.findings[0].check for cell in report.cells] == ["slower_than_history"] * 5
        assert {cell.lanes[Lane.NUMERICS].value for cell in report.cells} == {"pass"}
        assert "10 green runs from 2026-01-01 to 2026-01-10 (night-9, night-8, night-7" in done.stdout
        file.unlink(missing_ok=True)  # the run directory holds the baseline


def test_judging_again_gives_the_same_report_without_training(copy: Path) -> None:
    before = read_report((copy / "report.json").read_text())
    done = harness("report", copy.name, cwd=copy.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    after = read_report((copy / "report.json").read_text())
    assert after.cells == before.cells
    assert after.timing == before.timing
    assert harness("report", "latest", cwd=copy.parent.parent).returncode == 0


def test_metadata_lost_on_a_middle_rank_of_the_records_fails_with_its_place(copy: Path) -> None:
    path = _record(copy, "tp2-pp2-cp1-sft", 3)  # stage 1, tp 1
    record = json.loads(path.read_text())
    for seen in record["layers"]:
        seen["params"] = None
    path.write_text(json.dumps(record))
    seal(AttemptDir(path.parent.parent))
    done = harness("report", copy, cwd=copy.parent)
    assert done.returncode == 1
    report = read_report((copy / "report.json").read_text())
    (failed,) = [cell for cell in report.cells if cell.outcome.value == "FAIL"]
    assert failed.findings[0].lane.value == "metadata"
    assert (failed.findings[0].where["stage"], failed.findings[0].where["tp"]) == (1, 1)


def test_a_changed_loss_fails_in_the_numerics_lane_alone(copy: Path) -> None:
    path = _record(copy, "tp1-pp1-cp1-sft", 0)
    record = json.loads(path.read_text())
    record["steps"][0]["documents"]["2"]["loss_sum"] *= 1.001
    path.write_text(json.dumps(record))
    seal(AttemptDir(path.parent.parent))
    assert harness("report", copy, cwd=copy.parent).returncode == 1
    report = read_report((copy / "report.json").read_text())
    (failed,) = [cell for cell in report.cells if cell.outcome.value == "FAIL"]
    assert {finding.lane.value for finding in failed.findings} == {"numerics"}
    assert any(finding.where.get("document") == 2 for finding in failed.findings)


def test_a_missing_record_is_undecided_not_passed(copy: Path) -> None:
    _record(copy, "tp2-pp2-cp1-sft", 2).unlink()
    assert harness("report", copy, cwd=copy.parent).returncode == 3


def test_a_half_written_record_is_undecided_and_named(copy: Path) -> None:
    path = _record(copy, "tp2-pp2-cp1-sft", 2)
    path.write_text(path.read_text()[:200])
    done = harness("report", copy, cwd=copy.parent)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "rank-00002.json" in done.stdout


def test_only_runs_a_cell_with_the_reference_it_needs(tmp_path: Path) -> None:
    done = harness("run", write_matrix(tmp_path), "--only", "tp2-pp2-cp1-sft", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report((only_run(tmp_path / "reports") / "report.json").read_text())
    assert {cell.id.rpartition("-")[0] for cell in report.cells} == {"tp2-pp2-cp1-sft", "tp1-pp1-cp1-unpacked"}


def test_bf16_layouts_agree_within_their_own_bounds(tmp_path: Path) -> None:
    text = MATRIX.replace("packing: [reference, sft]", "packing: reference\n  dtype: bf16")
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report((only_run(tmp_path / "reports") / "report.json").read_text())
    assert all(cell.axes["dtype"] == "bf16" for cell in report.cells)
    # All losses and gradients are compared; the change of weights whose gradients bf16 cannot tell from 0 is not.
    left_out = [cell.evidence.not_compared for cell in report.cells]
    assert not [text for text in left_out if re.search("losses|gradient", text)]


def test_a_known_failure_that_passes_is_xpass(tmp_path: Path) -> None:
    text = MATRIX + "xfail: [{pattern: tp1-pp1-cp1-sft, reason: was broken once}]\n"
    done = harness("run", write_matrix(tmp_path, text), "--only", "tp1-pp1-cp1-sft", cwd=tmp_path)
    assert done.returncode == 0
    assert "1 XPASS" in done.stdout
