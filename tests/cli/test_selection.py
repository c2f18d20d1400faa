"""`-k` reads what pytest's -k reads: texts, and, or, not, parentheses."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.selection import failed_cells, find_run, parse_expression
from harness.core.errors import InputError
from harness.core.outcomes import KnownFailure, Outcome, verdict_of
from harness.core.run.run_dir import RunDir
from harness.reporting.render_json import render_json
from harness.runs.lock import only_launcher
from tests.sample_report import sample_report

IDS = ["tp1-cp1-sft", "tp2-cp1-sft", "tp2-cp2-sft", "tp2-cp2-reference"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tp2", IDS[1:]),
        ("tp2 and cp2", IDS[2:]),
        ("tp1 or reference", [IDS[0], IDS[3]]),
        ("not tp2", IDS[:1]),
        ("tp2 and not (cp2 or reference)", [IDS[1]]),
        ("tp1 or tp2 and reference", [IDS[0], IDS[3]]),  # and binds closer
        ("not not sft", IDS[:3]),
    ],
)
def test_an_expression_picks_ids(text: str, wanted: list[str]) -> None:
    fits = parse_expression(text)
    assert [name for name in IDS if fits(name)] == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a text is missing at the end"),
        ("tp2 and", "a text is missing at the end"),
        ("or tp2", "a text is missing before 'or'"),
        ("(tp2", "a parenthesis is not closed"),
        ("tp2)", "')' is one word too many"),
        ("tp2 cp2", "'cp2' is one word too many"),
    ],
)
def test_what_cannot_be_read_is_an_input_error(text: str, said: str) -> None:
    with pytest.raises(InputError, match="-k: ") as raised:
        parse_expression(text)
    assert said in str(raised.value)


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


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("smoke-20261124T215736Z-905b", "smoke-20261125T010000Z-0001", "nightly-20261125T020000Z-0002"):
        folder = tmp_path / "reports" / name
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text("{}")
        (folder / "report.html").write_text("")
    return tmp_path / "reports"


@pytest.mark.parametrize(
    "name", ["nightly-20261125T020000Z-0002", "night", "{runs}/nightly-20261125T020000Z-0002", "{file}"]
)
def test_every_way_to_name_a_run(name: str, runs: Path) -> None:
    wanted = runs / "nightly-20261125T020000Z-0002"
    assert find_run(name.format(runs=runs, file=wanted / "report.html"), runs).root == wanted


def test_the_beginning_of_several_ids_names_none(runs: Path) -> None:
    with pytest.raises(InputError) as raised:
        find_run("smoke", runs)
    assert "2 runs begin with 'smoke'" in str(raised.value)
    assert "smoke-20261124T215736Z-905b, smoke-20261125T010000Z-0001" in str(raised.value)


def test_a_misspelt_id_gets_a_suggestion(runs: Path) -> None:
    with pytest.raises(InputError) as raised:
        find_run("nihgtly-20261125T020000Z-0002", runs)
    assert "did you mean nightly-20261125T020000Z-0002?" in str(raised.value)


@pytest.mark.parametrize("name", ["", "report.html", "/", "no\0such"])
def test_other_words_name_no_run(name: str, runs: Path) -> None:
    with pytest.raises(InputError):
        find_run(name, runs)


def test_the_latest_run_is_the_one_that_began_last(runs: Path) -> None:
    for number, name in enumerate(("nightly-20261125T020000Z-0002", "smoke-20261125T010000Z-0001")):
        os.utime(runs / name / "plan.json", (4e9 + number,) * 2)
    os.utime(runs / "nightly-20261125T020000Z-0002", (5e9, 5e9))  # `compare` wrote into it
    assert find_run("latest", runs).root.name == "smoke-20261125T010000Z-0001"


@pytest.mark.parametrize("name", ["latest", "large", "{runs}/large-20261125T030000Z-0003"])
def test_a_run_whose_launcher_ended_before_its_plan_was_written_is_named_as_such(name: str, runs: Path) -> None:
    (runs / "large-20261125T030000Z-0003" / "cells").mkdir(parents=True)
    run = RunDir(runs / "large-20261125T030000Z-0003")
    with only_launcher(run):
        pass
    os.utime(run.root / "cells", (4e9, 4e9))  # the newest
    with pytest.raises(InputError, match=r"large-.*-0003: the launcher ended before it had named all cells"):
        find_run(name.format(runs=runs), runs)
    with only_launcher(run), pytest.raises(InputError, match=r"the launcher still names the run's cells: pid \d+ on"):
        find_run(name.format(runs=runs), runs)
    assert find_run("nightly", runs).root.name == "nightly-20261125T020000Z-0002"
