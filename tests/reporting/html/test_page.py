"""Every outcome and every change has its look on a page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.outcomes import Finding, Lane, Outcome
from harness.core.run.report import ChangeKind
from harness.reporting.html.page import (
    CHANGE_CLASSES,
    OUTCOME_MARKS,
    Link,
    RunFiles,
    place_words,
    reach_words,
    value_text,
)
from tests.reporting.html.test_report import Page
from tests.sample_report import sample_report


def test_no_outcome_and_no_change_is_left_out() -> None:
    assert set(OUTCOME_MARKS) == set(Outcome)
    assert set(CHANGE_CLASSES) == set(ChangeKind)
    assert set(CHANGE_CLASSES.values()) <= {f"o-{outcome.value}" for outcome in Outcome}


def test_a_location_is_written_outermost_first_and_unknown_keys_are_kept() -> None:
    where = {"token": 17, "document": 4, "stage": 1, "micro_batch": 0, "new_key": [1], "layer": None, "ranks": [1, 2]}
    assert place_words(where) == ["stage 1", "micro-batch 0", "document 4", "token 17", "new key [1]"]


def test_reach_is_written_only_when_there_is_more_than_one_place() -> None:
    finding = Finding(lane=Lane.METADATA, check="order", message="no offsets", where={"places": 1, "ranks": [3]})
    assert reach_words(finding) == ""
    finding = replace(finding, where={"places": 12, "ranks": [2, 3], "stages": [1]})
    assert reach_words(finding) == "12 places; ranks 2, 3; stages 1"
    assert reach_words(replace(finding, message="no offsets; 12 places on ranks 2, 3 (stage 1)")) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (math.nan, "NaN"),
        (-math.inf, "-infinity"),
        (1e-5, "1e-05"),
        (64, "64"),
        ([0, 1, math.inf], '[0, 1, {"$float": "inf"}]'),
        ({"value": 0.1, "unit": "relative", "origin": "matrix"}, "0.1 relative"),
        ("1e-05 relative (default)", "1e-05 relative (default)"),
    ],
)
def test_values_are_written_short(value: object, text: str) -> None:
    assert value_text(value) == text


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with the files of one failing cell, beside a history and another run."""
    run = tmp_path / "run 1"
    cell = next(cell for cell in sample_report().cells if cell.failure)
    attempt = run / "cells" / cell.id / "attempt-1"
    for folder in ("log", "ranks"):
        (attempt / folder).mkdir(parents=True)
    for name in ("log/rank-00003.log", "ranks/rank-00003.json", "config.json"):
        (attempt / name).touch()
    (run / "report.json").touch()
    (tmp_path / "history.html").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.html").touch()
    return run


def test_a_failing_cell_links_its_files_and_no_others(run: Path) -> None:
    cell = next(cell for cell in sample_report().cells if cell.failure)
    links = {link.text: link.href for link in RunFiles(run).of_cell(cell)}
    home = f"cells/{cell.id}/attempt-1"
    assert links == {
        "log of rank 3": f"{home}/log/rank-00003.log",
        "all logs": f"{home}/log/",
        "record of rank 3": f"{home}/ranks/rank-00003.json",
        "all records": f"{home}/ranks/",
        "configuration": f"{home}/config.json",
        "folder of the cell": f"cells/{cell.id}/",
    }
    assert all((run / href).exists() for href in links.values())


def test_without_a_failed_rank_the_files_are_those_of_the_first_finding(run: Path) -> None:
    failed = next(cell for cell in sample_report().cells if cell.failure)
    found = Finding(lane=Lane.METADATA, check="c", message="m", where={"rank": 3})
    cell = replace(failed, failure=None, findings=[found, replace(found, where={"rank": 1})])
    texts = [link.text for link in RunFiles(run).of_cell(cell)]
    assert texts[0] == "log of rank 3"
    assert "record of rank 3" in texts
    assert "log of rank 3" not in [link.text for link in RunFiles(run).of_cell(replace(cell, findings=[]))]


def test_a_report_without_a_run_directory_has_no_links_to_files() -> None:
    cell = next(cell for cell in sample_report().cells if cell.failure)
    assert RunFiles().of_cell(cell) == RunFiles().of_run() == []
    assert RunFiles().report_of("other") is None


def test_the_run_links_what_is_in_it_and_beside_it(run: Path) -> None:
    assert [link.href for link in RunFiles(run).of_run()] == ["./", "report.json", "../history.html"]


def test_another_run_is_linked_if_it_has_a_report(run: Path) -> None:
    files = RunFiles(run)
    assert files.report_of("other") == Link(text="other", href="../other/report.html")
    assert files.report_of("gone") is None
    assert files.report_of("../run 1/../other") is None
    assert files.report_of("") is None


def test_a_path_cannot_lead_out_of_the_run_nor_become_an_address(run: Path) -> None:
    files = RunFiles(run)
    (run / "javascript:alert(1)").touch()
    (run / "a b#c?d").touch()
    assert files.link("x", "/etc/passwd") is None
    assert files.link("x", "cells/../../../etc/passwd") is None
    assert files.link("x", "\0") is None
    assert files.link("x", "javascript:alert(1)") == Link(text="x", href="javascript%3Aalert%281%29")
    assert files.link("x", "a b#c?d") == Link(text="x", href="a%20b%23c%3Fd")
    hostile = replace(sample_report().cells[0], id="../../x")
    assert files.of_cell(hostile) == []


def test_every_link_of_a_page_leads_to_a_file(run: Path) -> None:
    from urllib.parse import unquote

    from harness.reporting.html.report import render_html

    page = Page(render_html(sample_report(), run))
    links = [link for link in page.links if not link.startswith(("#", "https:"))]
    assert len(links) == 9
    assert [link for link in links if not (run / unquote(link)).exists()] == []
