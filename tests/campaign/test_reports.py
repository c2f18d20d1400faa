"""The files of a report that is written again, and what is imported for it while cells run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign import reports
from harness.campaign.reports import write_reports
from harness.core.errors import InfrastructureError
from harness.core.run.run_dir import RunDir
from harness.reporting.html.report import PARTS_FOLDER
from tests.reporting.html.test_large_report import large_report


def pages(root: Path) -> list[str]:
    return sorted(path.name for path in (root / PARTS_FOLDER).glob("*.html"))


def test_pages_that_a_new_report_does_not_have_are_removed(tmp_path: Path) -> None:
    report = large_report()
    write_reports(RunDir(tmp_path), report)
    assert pages(tmp_path) == ["001.html", "002.html", "003.html"]
    write_reports(RunDir(tmp_path), replace(report, cells=report.cells[:500]))
    assert pages(tmp_path) == ["001.html", "002.html"]
    write_reports(RunDir(tmp_path), replace(report, cells=report.cells[:20]))
    assert pages(tmp_path) == []


def test_a_report_that_cannot_be_rendered_leaves_the_pages_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reports(RunDir(tmp_path), large_report())
    before = (tmp_path / PARTS_FOLDER / "003.html").read_text()

    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(reports, "render_pages", fails)
    with pytest.raises(InfrastructureError):
        write_reports(RunDir(tmp_path), large_report())
    assert (tmp_path / PARTS_FOLDER / "003.html").read_text() == before


@pytest.mark.parametrize(("before", "imported"), [("", "True"), ("sys.modules['matplotlib'] = None; ", "False")])
def test_curves_are_imported_ahead_and_an_import_that_fails_is_left_to_the_report(before: str, imported: str) -> None:
    code = (
        f"import sys, threading; {before}from harness.campaign.reports import import_ahead; import_ahead()\n"
        "for thread in threading.enumerate():\n    thread is threading.main_thread() or thread.join()\n"
        "print('harness.reporting.html.curves' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (imported, "")
