"""A run is named by its path, a file in it, its id, the beginning of that, or 'latest'."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.app.selection.find_run import find_run
from harness.core.errors import InputError
from harness.core.run.run_dir import RunDir
from harness.infra.runs.lock import only_launcher


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
