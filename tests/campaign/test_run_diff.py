"""The report shows changes since earlier runs of the history, queried once, and they change no verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.finalize import PREVIOUS_FILE, count_commits, record, with_run_diff
from harness.core.run.report import Report
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Expansion, RunPlan
from harness.core.stack import Checkout, ReadyStack, Stack
from harness.history.since_previous import CommitCount
from harness.launch.stacks.checkout import commit_of, make, repository_place
from harness.reporting.render_json import render_json
from tests.launch.stacks.test_checkout import git, repository
from tests.two_runs import earlier_report, in_stack, later_report

PLAN = RunPlan(
    run_id="x",
    matrix_name="smoke",
    matrix_file="smoke.yaml",
    command=[],
    expansion=Expansion(cells=(), rejected=()),
    allocations=(),
)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A history with yesterday's run, whose files exist."""
    return remember(tmp_path, earlier_report())


def remember(folder: Path, report: Report) -> Path:
    run = RunDir(folder / report.run_id)
    run.root.mkdir()
    run.report("report.json").write_text(render_json(report))
    assert record(run, report, folder / "history.sqlite")
    return folder / "history.sqlite"


def told(tmp_path: Path, history: Path | None, report: Report | None = None, plan: RunPlan = PLAN) -> Report:
    run = RunDir(tmp_path / "tonight")
    run.root.mkdir(exist_ok=True)
    return with_run_diff(run, plan, report or later_report(), history)


def test_the_report_tells_what_changed_since_yesterday(tmp_path: Path, history: Path) -> None:
    since = told(tmp_path, history).since
    assert since is not None
    assert since.run_id == earlier_report().run_id
    assert {cell.id.rpartition("-")[0]: (cell.change, cell.between) for cell in since.cells} == {
        "tp2-pp4-cp1-sft": ("newly failing", ["megatron-core 0.19.1 -> 0.19.2"]),
        "tp2-pp2-cp1-sft": ("fixed", ["megatron-core 0.19.1 -> 0.19.2"]),
        "tp1-pp2-cp2-reference": ("still failing", ["since the last run: megatron-core 0.19.1 -> 0.19.2"]),
    }


def test_what_the_history_said_is_kept_and_the_history_asked_once(tmp_path: Path, history: Path) -> None:
    first = told(tmp_path, history)
    assert (tmp_path / "tonight" / PREVIOUS_FILE).exists()
    history.unlink()
    assert render_json(told(tmp_path, history)) == render_json(first)  # a NaN is not equal to itself
    assert render_json(told(tmp_path, None)) == render_json(first)


def test_a_run_recorded_already_is_not_its_own_past(tmp_path: Path) -> None:
    history = remember(tmp_path, later_report())
    assert told(tmp_path, history).since is None
    assert not (tmp_path / "tonight" / PREVIOUS_FILE).exists()


@pytest.mark.parametrize("text", ["no database", ""])
def test_a_history_that_cannot_be_read_leaves_the_report_as_it_is(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history.sqlite").write_text(text)
    unchanged = render_json(later_report())
    assert render_json(told(tmp_path, tmp_path / "history.sqlite")) == unchanged
    assert ("changes since the previous run are not shown" in capsys.readouterr().err) == bool(text)
    assert render_json(told(tmp_path, tmp_path / "gone.sqlite")) == unchanged


def test_a_damaged_file_of_the_past_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tonight").mkdir()
    (tmp_path / "tonight" / PREVIOUS_FILE).write_text('{"run_id": 3}')
    assert told(tmp_path, None).since is None
    assert "changes since the previous run are not shown" in capsys.readouterr().err


def test_without_the_files_of_yesterday_versions_are_told_in_words(tmp_path: Path, history: Path) -> None:
    (tmp_path / earlier_report().run_id / "report.json").unlink()
    since = told(tmp_path, history).since
    assert since is not None
    assert since.cells[0].between == ["megatron-core 0.19.1 -> megatron-core 0.19.2"]


def counted_in(tmp_path: Path, checkout: Checkout, old: str, new: str) -> list[CommitCount]:
    plan = replace(PLAN, stacks={"main": ReadyStack(requested=Stack(name="main", checkouts=(checkout,)))})
    return count_commits(plan, [("main", old, new)])


def test_commits_are_counted_in_the_mirror_of_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_STACKS", str(tmp_path / "stacks"))
    source = repository(tmp_path / "source")
    old, new = git(source, "rev-parse", "old"), git(source, "rev-parse", "main")
    checkout = Checkout(package="megatron-lm", repository=f"file://{source}", ref="main")
    assert counted_in(tmp_path, checkout, old, new) == []
    assert commit_of(checkout, fetch=True) == new
    plan = replace(PLAN, stacks={"main": ReadyStack(requested=Stack(name="main", checkouts=(checkout,)))})
    history = remember(tmp_path, in_stack(earlier_report(), old))
    since = told(tmp_path, history, in_stack(later_report(), new), plan).since
    assert since is not None
    assert since.cells[0].between == [f"megatron-lm {old[:10]}..{new[:10]}, 1 commit"]
    assert counted_in(tmp_path, checkout, f"--output={tmp_path}/x", new) == []


def test_commits_of_a_local_repository_are_counted_where_this_machine_made_its_worktree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_STACKS", str(tmp_path / "stacks"))
    source = repository(tmp_path / "source")
    old, new = git(source, "rev-parse", "old"), git(source, "rev-parse", "main")
    checkout = Checkout(package="megatron-lm", repository=str(source), ref="main")
    assert counted_in(tmp_path, checkout, old, new) == []
    make(checkout, new, print)
    assert counted_in(tmp_path, checkout, old, new) == [CommitCount(before=old, after=new, added=1, removed=0)]


def test_no_repository_that_a_plan_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even in the place of a mirror that a name with "../" leads to."""
    monkeypatch.setenv("HARNESS_STACKS", str(tmp_path / "stacks"))
    (tmp_path / "stacks" / "mirrors").mkdir(parents=True)
    source = repository(tmp_path / "source")
    old, new = git(source, "rev-parse", "old"), git(source, "rev-parse", "main")
    local = Checkout(package="megatron-lm", repository=str(source), ref="main")
    outside = Checkout(package="../outside", repository="https://example.org/x", ref="main")
    place = repository_place(outside)
    assert place
    assert counted_in(tmp_path, local, old, new) == []
    source.rename(place.resolve())
    assert counted_in(tmp_path, outside, old, new) == []
