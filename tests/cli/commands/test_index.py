"""`harness index` writes the pages of a reports folder; every link on them leads to a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from harness.cli.cli import main
from harness.core.run.run_dir import RunDir
from harness.history.database import opened
from harness.history.trends import run_row
from harness.reporting.html.report import render_html
from harness.reporting.render_json import render_json
from tests.reporting.html.test_report import Page
from tests.sample_report import passing_report, sample_report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a green run, a red one, an interrupted one, and a history of the first two."""
    monkeypatch.delenv("HARNESS_HISTORY", raising=False)
    reports = tmp_path / "all reports"
    for day, report in ((20, passing_report()), (21, sample_report())):
        report = replace(report, run_id=f"smoke-202608{day}T101530Z-0001")
        run = RunDir(reports / report.run_id)
        run.root.mkdir(parents=True)
        run.report("report.json").write_text(render_json(report))
        run.report("report.html").write_text(render_html(report))
        with opened(reports / "history.sqlite", write=True) as history:
            history.record(replace(run_row(report), started=f"2026-08-{day}T10:15:30Z"), run.root)
    (reports / "smoke-20260822T101530Z-0001").mkdir()
    (reports / "smoke-20260822T101530Z-0001" / "plan.json").write_text("{}")
    return reports


def broken(page: Path) -> list[str]:
    """Links of a page that lead to no file, or to no element of one."""
    found = []
    for link in Page(page.read_text(encoding="utf-8")).links:
        path, _, fragment = link.partition("#")
        target = page.parent / unquote(path) if path else page
        if not target.exists() or (fragment and fragment not in Page(target.read_text(encoding="utf-8")).ids):
            found.append(link)
    return found


def test_the_index_names_runs_and_since_when_a_matrix_is_red(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(folder)]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == [str(folder / "index.html"), str(folder / "history.html")]
    text = Page((folder / "index.html").read_text(encoding="utf-8")).text
    assert "✕ 1 matrix fails 3 runs of 1 matrix, 1 of them unfinished or unreadable." in text
    assert "smoke-20260821T101530Z-0001 2026-08-21 10:15 smoke-20260820T101530Z-0001 2026-08-20 10:15" in text
    assert "! interrupted smoke-20260822T101530Z-0001" in text
    assert "no packed metadata reached this rank" in text
    for name in ("index.html", "history.html"):
        assert broken(folder / name) == []
    assert "index.html" in Page((folder / "history.html").read_text(encoding="utf-8")).links


def test_a_folder_without_runs_has_an_index_and_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_HISTORY", raising=False)
    assert main(["index", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert "There are no runs" in Page((tmp_path / "index.html").read_text(encoding="utf-8")).text


def test_a_folder_that_does_not_exist_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(tmp_path / "gone")]) == 2
    assert "no such folder" in capsys.readouterr().err
