"""`harness history` on prepared runs, without training."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from harness.cli.cli import main
from harness.cli.commands.history import moment, table_text
from harness.core.errors import InputError
from harness.history.database import opened
from harness.reporting.render_json import render_json
from tests.history.history_runs import CELL, run_of
from tests.sample_report import sample_report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with reports/history.sqlite of six runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_HISTORY", raising=False)
    with opened(tmp_path / "reports" / "history.sqlite", write=True) as history:
        for day, outcome in enumerate(("PASS", "FLAKY", "FAIL", "PASS", "XFAIL", "FAIL"), 1):
            version = "megatron-core 0.19.2" if day > 4 else "megatron-core 0.18.2"
            history.record(run_of(day, outcome, version=version), tmp_path)
        history.record(replace(run_of(7, name="tp1-pp1-cp1-other"), matrix="speed", run_id="speed-07"), tmp_path)
    return tmp_path


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    """The rows of an export to standard output."""
    assert main(["history", "export", *arguments]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_runs_are_listed_the_newest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["started", "run", "id"]
    assert [line.split()[1] for line in lines[1:]] == ["speed-07"] + [f"smoke-0{day}" for day in range(6, 0, -1)]
    assert main(["history", "--limit", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("words", [["--json"], ["runs", "--json"], ["--json", "--limit", "2", "runs"]])
def test_a_listing_is_json_with_all_columns(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["history", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["run_id"] for row in found][:2] == ["speed-07", "smoke-06"]
    assert len(found) == (2 if "--limit" in words else 7)
    assert {"pass", "wall_s", "directory", "harness_commit"} <= set(found[0])
    assert main(["history", "--matrix", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("filters", "days"),
    [
        (["--outcome", "fail"], [6, 3]),
        (["--matrix", "spe*"], [7]),
        (["--cell", "*other"], [7]),
        (["--stack", "megatron-core 0.18*"], [4, 3, 2, 1]),
        (["--since", "2026-08-05", "--until", "2026-08-07"], [6, 5]),
        (["--since", "2026-08-05", "--outcome", "FAIL", "--cell", CELL], [6]),
        (["--cell", "nothing*"], []),
    ],
)
def test_filters_narrow_every_listing(
    folder: Path, capsys: pytest.CaptureFixture[str], filters: list[str], days: list[int]
) -> None:
    for listing in ("runs", "outcomes", "metrics"):
        found = list(dict.fromkeys(int(row["run_id"][-2:]) for row in rows(capsys, listing, *filters)))
        assert found == days
    assert main(["history", *filters, "runs"]) == main(["history", "runs", *filters]) == 0
    one, other = capsys.readouterr().out.split("started")[-2:] if days else ("", "")
    assert one.strip() == other.strip()


def test_a_cell_has_its_counts_its_flaky_rate_and_how_often_it_turned(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row, _) = rows(capsys, "cells")
    assert (row["cell"], row["last"], row["version"]) == (CELL, "FAIL", "megatron-core 0.19.2")
    counts = {name: int(row[name]) for name in ("runs", "pass", "fail", "xfail", "flaky", "expired")}
    assert counts == {"runs": 6, "pass": 2, "fail": 2, "xfail": 1, "flaky": 1, "expired": 0}
    assert float(row["flaky_rate"]) == pytest.approx(1 / 6, abs=1e-4)
    # FLAKY -> FAIL -> PASS on one version, XFAIL -> FAIL on the next; PASS -> XFAIL is no change of colour
    assert int(row["turned"]) == 3


def test_a_wanted_outcome_picks_cells_and_leaves_their_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, "cells", "--outcome", "FLAKY")
    assert (row["cell"], row["last"], row["runs"], row["fail"]) == (CELL, "FAIL", "6", "2")


def test_findings_and_metrics_are_listed_with_their_cell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "reports" / "old").mkdir()
    run = folder / "reports" / "old"
    (run / "plan.json").write_text("{}")
    (run / "report.json").write_text(render_json(sample_report()))
    assert main(["history", "import", "old", "reports/old", "gone"]) == 2
    told = capsys.readouterr()
    assert "2 of 3 runs recorded" in told.out and "no run 'gone'" in told.err
    findings = rows(capsys, "findings", "--cell", "tp2-pp4-cp1-sft")
    assert [row["check"] for row in findings] == ["params_present", "params_agree_ranks", "ended"]
    assert json.loads(findings[0]["place"])["stage"] == 1
    (metric,) = [
        row
        for row in rows(capsys, "metrics", "--cell", CELL, "--matrix", "smoke", "--since", "2026-08-20")
        if row["metric"] == "step_p50_s"
    ]
    assert float(metric["value"]) == 0.031


def test_a_run_without_a_report_is_told_how_to_get_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "reports" / "raw").mkdir()
    (folder / "reports" / "raw" / "plan.json").write_text("{}")
    assert main(["history", "import", "raw"]) == 2
    assert "harness report raw" in capsys.readouterr().err


def test_pruning_keeps_the_newest_of_each_matrix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "prune"]) == 2
    assert "--older-than 90d" in capsys.readouterr().err
    assert main(["history", "prune", "--older-than", "2026-08-20", "--keep-last", "2", "--dry-run"]) == 0
    assert "4 runs would be removed" in capsys.readouterr().out
    assert len(rows(capsys, "runs")) == 7
    assert main(["history", "prune", "--older-than", "2026-08-05", "--keep-last", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"smoke-0{day}" for day in range(1, 5)] + ["4 runs removed"]
    assert [row["run_id"] for row in rows(capsys, "runs")] == ["speed-07", "smoke-06", "smoke-05"]
    assert {row["run_id"] for row in rows(capsys, "metrics")} == {"speed-07", "smoke-06", "smoke-05"}


def test_the_history_is_found_by_flag_variable_or_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copy(folder / "reports" / "history.sqlite", folder / "moved.sqlite")
    (folder / "reports" / "history.sqlite").unlink()
    assert main(["history"]) == 2
    assert "there is no history" in capsys.readouterr().err
    assert main(["history", "--history", str(moved)]) == main(["history", "cells", "--history", str(moved)]) == 0
    monkeypatch.setenv("HARNESS_HISTORY", str(moved))
    assert main(["history"]) == 0


def test_a_page_is_written_beside_the_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "html", "--since", "2026-08-01", "--until", "2026-08-09"]) == 0
    assert capsys.readouterr().out.strip() == "reports/history.html"
    page = (folder / "reports" / "history.html").read_text()
    assert "since 2026-08-06 (smoke-06), with megatron-core 0.19.2" in page


NOW = datetime(2026, 8, 22, 10, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-08-01", "2026-08-01T00:00:00Z"),
        ("2026-08-01T06:00", "2026-08-01T06:00:00Z"),
        ("2026-08-01T06:00+02:00", "2026-08-01T04:00:00Z"),
        ("12h", "2026-08-21T22:00:00Z"),
        ("90d", "2026-05-24T10:00:00Z"),
        ("2w", "2026-08-08T10:00:00Z"),
    ],
)
def test_moments_are_dates_times_or_how_long_ago(text: str, when: str) -> None:
    assert moment(text, "--since", now=NOW) == when


_EXTREMES = [
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:00-14:00",
    "99999w",
    "0999-01-01",
    "1\u0662d",
    "2026-08-01\0",
]


@pytest.mark.parametrize("text", ["yesterday", "90", "d", "2026-13-01", *_EXTREMES])
def test_other_words_are_no_moments(text: str) -> None:
    with pytest.raises(InputError, match=r"--since: is not a date .*allowed: a date"):
        moment(text, "--since")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "9" * 20, "9" * 5000])
@pytest.mark.parametrize(
    "words", [["runs", "--limit"], ["export", "--limit"], ["prune", "--keep-last"], ["html", "--days"]]
)
def test_numbers_have_a_range(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["history", *words, text])
    assert ended.value.code == 2
    assert f"argument {words[-1]}: invalid number from 1 to " in capsys.readouterr().err


def test_a_page_of_all_times_is_written_at_once(folder: Path) -> None:
    assert main(["history", "html", "--since", "1970-01-01", "--until", "9999-12-31", "-o", "page.html"]) == 0
    assert (folder / "page.html").read_text().count("9999-12-") < 200


def test_what_output_names_is_not_blamed_on_the_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["html"], ["export"], ["export", "--format", "json"]):
        assert main(["history", *words, "--output", str(folder)]) == 2
        assert "--output: is a folder" in capsys.readouterr().err


def test_a_listing_clips_long_words_and_shows_no_control_characters() -> None:
    text = table_text([{"a": "x" * 80, "b": 1.23456}, {"a": "y\x1b[31m\nz", "b": None}], ["a", "b"], None)
    first, second, third = text.splitlines()
    assert first.split() == ["a", "b"]
    assert second.endswith("...  1.235")
    assert third.split() == ["y", "[31m", "z", "-"]
    assert max(map(len, table_text([{"a": "x" * 80}], ["a"], 20).splitlines())) == 20
