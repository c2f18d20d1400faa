from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.reports import MAX_BYTES, write_ci_output
from tests.sample_report import big_report, passing_report, sample_report


def test_without_a_ci_system_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    write_ci_output(sample_report(), {"CI": "true", "GITHUB_ACTIONS": "false"}, stream)
    assert stream.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


def test_annotations_name_the_matrix_by_its_path_in_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nightly").mkdir()
    monkeypatch.chdir(tmp_path / "nightly")
    report = replace(sample_report(), matrix_file="one.yaml")
    stream = io.StringIO()
    write_ci_output(report, {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path)}, stream)
    assert all(line.startswith("::error file=nightly/one.yaml,") for line in stream.getvalue().splitlines())
    write_ci_output(report, {"GITHUB_ACTIONS": "true"}, elsewhere := io.StringIO())
    assert all(line.startswith("::error file=one.yaml,") for line in elsewhere.getvalue().splitlines())


def test_the_summary_is_added_to_what_earlier_commands_wrote(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    for _ in range(2):
        write_ci_output(passing_report(), {"GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text().startswith("# before\n# PASS: smoke\n")
    assert summary.read_text().count("# PASS: smoke") == 2


def test_a_summary_never_exceeds_the_size_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (MAX_BYTES - 3000))
    environment = {"GITHUB_STEP_SUMMARY": str(summary)}
    write_ci_output(big_report(100), environment)
    assert MAX_BYTES - 3000 < summary.stat().st_size <= MAX_BYTES
    assert "Truncated" in summary.read_text()[-200:]
    summary.write_text("x" * MAX_BYTES)
    write_ci_output(big_report(100), environment)
    assert summary.stat().st_size == MAX_BYTES
    assert "cannot write the job summary" in capsys.readouterr().err


def test_a_summary_that_cannot_be_written_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ci_output(passing_report(), {"GITHUB_STEP_SUMMARY": str(tmp_path / "gone" / "summary.md")})
    assert "cannot write the job summary" in capsys.readouterr().err
