"""Only a failed check gives exit code 1: every other error gives 2 or 3, with a one-line message and a file."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.judging import judge
from harness.core.errors import InfrastructureError, InputError, InternalError
from harness.core.outcomes import EXIT_INPUT, EXIT_PASS, EXIT_UNDECIDED, Outcome
from harness.core.run.run_dir import write_json
from harness.infra.process import ERROR_FILE, tracebacks_in, uncaught
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.verdict import CellVerdict
from harness.reporting import build as report_build
from harness.runs.evidence_files import read_plan
from tests.cli.conftest import harness
from tests.cli.runs import simulated_run
from tests.processes import HUNG_S


def test_a_defect_of_the_harness_names_the_file_with_its_traceback(tmp_path: Path) -> None:
    with (
        pytest.raises(InternalError, match=r"internal error: ZeroDivisionError.*report it") as caught,
        tracebacks_in(tmp_path),
    ):
        _ = 1 // 0
    assert caught.value.exit_code == EXIT_UNDECIDED
    assert str(tmp_path / ERROR_FILE) in str(caught.value)
    assert "ZeroDivisionError" in (tmp_path / ERROR_FILE).read_text()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ESTALE])
def test_an_error_of_the_operating_system_is_no_defect_of_the_harness(number: int, tmp_path: Path) -> None:
    error = uncaught(OSError(number, os.strerror(number), "plan.json"), tmp_path)
    assert isinstance(error, InfrastructureError)
    assert f"plan.json: {os.strerror(number)}" in str(error)
    assert ("ulimit -n" in str(error)) == (number == errno.EMFILE)


def test_errors_that_have_their_own_words_pass_through(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="as it is"), tracebacks_in(tmp_path):
        raise InputError("as it is")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["vanished", "file"])
def test_a_run_directory_that_cannot_be_written_sends_the_traceback_elsewhere(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "run"
    if kind == "file":
        folder.mkdir()
        (folder / ERROR_FILE).mkdir()  # as a full disk: opening it for writing fails, also for root
    said = str(uncaught(KeyError("x"), folder))
    named = re.search(rf"{re.escape(str(tmp_path))}/harness-error-\S+\.txt", said)
    assert named
    assert "KeyError: 'x'" in Path(named.group()).read_text()
    assert folder.exists() is (kind == "file")


def test_a_verb_that_raises_ends_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.cli import cli
    from harness.cli.commands import plan

    def schema() -> int:
        raise KeyError("broken on purpose")

    monkeypatch.setattr(plan, "schema", schema)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["schema"]) == EXIT_UNDECIDED
    said = capsys.readouterr().err
    assert said.startswith("harness: internal error: KeyError")
    assert said.count("\n") == 1


PIPES = ["report RUN | true", "compare RUN RUN | true"]


@pytest.mark.parametrize("command", PIPES)
def test_a_reader_that_leaves_changes_neither_the_exit_code_nor_the_history(command: str, tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "runs")
    assert harness("report", run.root, "--no-history", cwd=tmp_path).returncode == EXIT_PASS
    script = f"{sys.executable} -m harness {command.replace('RUN', str(run.root))}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == EXIT_PASS
    assert "Traceback" not in done.stderr and "Broken pipe" not in done.stderr
    written = "history.sqlite" if "report" in command else f"{run.root.name}/compare.md"
    assert (tmp_path / "runs" / written).exists()


def test_output_that_cannot_be_written_is_undecided(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "runs")
    script = f"exec {sys.executable} -m harness report {run.root} > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == EXIT_UNDECIDED
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["report.json", "report.html", "baseline.json"])
def test_a_report_that_cannot_be_written_leaves_the_verdict_and_is_said(name: str, tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "runs")
    (run.root / name).mkdir()  # as on a full or read-only disk: writing it fails, also for root
    done = harness("report", run.root, cwd=tmp_path)
    assert done.returncode == EXIT_UNDECIDED
    assert "3 PASS" in done.stdout
    assert name in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_few_file_descriptors_end_promptly_and_not_with_1(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "runs")
    script = f"ulimit -n 16; exec {sys.executable} -m harness report {run.root}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=HUNG_S)
    assert done.returncode in (EXIT_PASS, EXIT_UNDECIDED), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_a_run_directory_that_is_not_ascii_works_in_any_locale(locale: str, tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "läufe-日本")
    bare = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    done = harness("report", run.root, cwd=tmp_path, env=bare)
    assert done.returncode == EXIT_PASS, done.stderr
    assert "3 PASS" in done.stdout


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file: file.write_bytes(b""),
    "binary": lambda file: file.write_bytes(bytes(range(256))),
    "list": lambda file: file.write_text("[1, 2]"),
    "null": lambda file: file.write_text("null"),
    "nested": lambda file: file.write_text("[" * 100_000),
    "folder": lambda file: (file.unlink(), file.mkdir())[-1],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["result.json", "ranks/rank-00001.json", "log/rank-00001.log"])
def test_one_damaged_file_is_at_most_one_error(which: str, damage: str, tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    victim = next(cell.id for cell in plan.expansion.cells if cell.config.layout.world_size > 1)
    file = run.attempt(victim).root / which
    file.parent.mkdir(exist_ok=True)
    file.touch()
    DAMAGES[damage](file)
    report = judge(run, plan)
    outcomes = {cell.id: cell.outcome for cell in report.cells}
    # The log of a cell that completed is not evidence.
    assert outcomes.pop(victim) is (Outcome.PASS if "log" in which else Outcome.ERROR)
    assert set(outcomes.values()) == {Outcome.PASS}


@pytest.mark.parametrize("at", range(1, 400, 37))
def test_a_journal_cut_anywhere_changes_no_verdict(at: int, tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    run.events.write_bytes(run.events.read_bytes()[:at])
    assert judge(run, read_plan(run)).counts[Outcome.PASS] == 3


@pytest.mark.parametrize(
    "line", ["{", "[]", "7", '{"event": 3}', '{"event": "launched"}', '{"event": "job_ended"}', "\x00"]
)
def test_junk_in_a_journal_changes_no_verdict(line: str, tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    run.events.write_text(f"{line}\n{run.events.read_text()}{line}\n")
    assert judge(run, read_plan(run)).counts[Outcome.PASS] == 3


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_bad_input(damage: str, tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    DAMAGES[damage](run.plan)
    with pytest.raises(InputError, match=re.escape("plan.json")):
        read_plan(run)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_cell_that_is_its_own_reference_is_bad_input(length: int, tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    ids = [cell.id for cell in plan.expansion.cells]
    above = dict(zip(ids[:length], [*ids[1:length], ids[0]]))
    cells = tuple(replace(cell, control=above.get(cell.id, cell.control)) for cell in plan.expansion.cells)
    write_json(run.plan, replace(plan, expansion=replace(plan.expansion, cells=cells)))
    done = harness("report", run.root, cwd=tmp_path, timeout=HUNG_S)
    assert done.returncode == EXIT_INPUT
    assert "is its own control" in done.stderr


def test_a_cell_that_the_judge_cannot_compute_is_one_error_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for any odd value that no reader refuses."""
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    victim = plan.expansion.cells[-1].id
    real = report_build.judge_cell

    def breaks(evidence: CellEvidence, **known: Any) -> CellVerdict:
        if evidence.cell.id == victim:
            raise TypeError("'>' not supported between instances of 'str' and 'int'")
        return real(evidence, **known)

    monkeypatch.setattr(report_build, "judge_cell", breaks)
    report = judge(run, plan)
    (broken,) = (cell for cell in report.cells if cell.outcome is Outcome.ERROR)
    assert broken.id == victim
    kept = run.attempt(victim).root.parent / ERROR_FILE
    assert str(kept) in broken.reason
    assert "TypeError" in kept.read_text()
    assert report.counts[Outcome.PASS] == 2
