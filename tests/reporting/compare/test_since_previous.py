from __future__ import annotations

from dataclasses import replace

from harness.core.outcomes import Outcome
from harness.core.run.report import CellSince, Report
from harness.core.serialization import dumps, from_jsonable, loads
from harness.history.since_previous import CommitCount, Past, Point, Previous, moves, since
from harness.history.trends import run_row
from harness.reporting.compare.runs import stack_facts
from harness.reporting.render_markdown import render_markdown
from tests.sample_report import sample_report
from tests.two_runs import NEW, OLD, changed, in_stack

BROKEN, OTHER, FINE = "tp2-pp4-cp1-sft", "tp1-pp2-cp2-reference", "tp2-pp2-cp1-sft"
FRIDAY = Point(run_id="friday", started="2026-08-20T01:00:00Z", version="megatron-lm main = 5e4fc931ba")
MONDAY = Point(run_id="monday", started="2026-08-21T01:00:00Z", version="megatron-lm main = 5e4fc931ba")


def tonight() -> Report:
    """Two cells fail, one passes; the stack is a checkout at NEW."""
    report = replace(in_stack(sample_report(), NEW, torch="2.9.0"), rejected=[])
    cells = [cell for cell in report.cells if cell.id.startswith((BROKEN, OTHER, FINE))]
    return replace(report, cells=cells)


def previous(**cells: Past) -> Previous:
    """Both earlier runs had the checkout at OLD; 312 commits lie between."""
    facts = stack_facts(in_stack(sample_report(), OLD, torch="2.9.0").provenance, "main")
    return Previous(
        run_id="monday",
        started=MONDAY.started,
        cells={name.replace("_", "-"): past for name, past in cells.items()},
        stacks={"friday": {"main": facts}, "monday": {"main": facts}},
        commits=[CommitCount(before=OLD, after=NEW, added=312, removed=0)],
    )


def said(report: Report, known: Previous) -> dict[str, CellSince]:
    found = since(report, run_row(report), known)
    return {cell.id.rpartition("-")[0]: cell for cell in found.cells}


GREEN = Past(green=True, last=MONDAY, first=FRIDAY, before=None)
RED = Past(green=False, last=MONDAY, first=MONDAY, before=FRIDAY)


def test_a_cell_that_was_green_is_failing_since_tonight_and_the_commits_in_between_are_listed() -> None:
    cell = said(tonight(), previous(**{BROKEN: GREEN}))[BROKEN]
    assert (cell.change, cell.since, cell.since_run) == (
        "newly failing",
        "2026-08-22T10:15:30Z",
        "smoke-20260822T101530Z-3f2a",
    )
    assert (cell.good, cell.good_run) == (MONDAY.started, "monday")
    assert cell.between == ["megatron-lm 5e4fc931ba..d30e165203, 312 commits"]
    assert cell.text == (
        "failing since 2026-08-22T10:15:30Z (run smoke-20260822T101530Z-3f2a); "
        "last good 2026-08-21T01:00:00Z (run monday); "
        "changed in between: megatron-lm 5e4fc931ba..d30e165203, 312 commits"
    )


def test_a_cell_that_was_red_still_fails_since_its_first_red_run() -> None:
    cell = said(tonight(), previous(**{OTHER: RED}))[OTHER]
    assert (cell.change, cell.since_run, cell.good_run) == ("still failing", "monday", "friday")
    # When it broke, the stack was the same; since the last red run it is another, so this failure may be another, too.
    assert cell.between == ["since the last run: megatron-lm 5e4fc931ba..d30e165203, 312 commits"]


def test_a_cell_that_fails_otherwise_than_before_says_so() -> None:
    (check,) = (cell.findings[0].check for cell in tonight().cells if cell.id.startswith(OTHER))
    same, other = (said(tonight(), previous(**{OTHER: replace(RED, check=name)}))[OTHER] for name in (check, "ended"))
    assert (same.earlier_check, other.earlier_check) == ("", "ended")
    assert "; in its last run ended failed first; changed in between: since the last run: " in other.text
    assert "failed first" not in same.text


def test_a_cell_that_was_red_and_passes_is_fixed_by_what_changed_since_the_last_red_run() -> None:
    cell = said(tonight(), previous(**{FINE: RED}))[FINE]
    assert cell.change == "fixed"
    assert cell.text.startswith("failed since 2026-08-21T01:00:00Z (run monday); last good 2026-08-20T01:00:00Z")
    assert cell.between == ["megatron-lm 5e4fc931ba..d30e165203, 312 commits"]


def test_a_cell_without_a_past_that_fails_was_not_judged_before() -> None:
    found = said(tonight(), previous())
    assert {name: cell.change for name, cell in found.items()} == dict.fromkeys(
        (BROKEN, OTHER), "failing, not judged before"
    )
    assert "no passing run known" in found[BROKEN].text


def test_a_cell_that_is_undecided_tonight_is_not_listed() -> None:
    report = changed(tonight(), FINE, outcome=Outcome.ERROR)
    assert said(report, previous(**{FINE: RED, BROKEN: GREEN, OTHER: RED})).keys() == {BROKEN, OTHER}


def test_without_the_files_of_a_run_the_version_texts_are_shown() -> None:
    known = replace(previous(**{BROKEN: GREEN}), stacks={})
    (between,) = said(tonight(), known)[BROKEN].between
    assert between == f"megatron-lm main = 5e4fc931ba -> megatron-lm main = {NEW[:12]}"


def test_every_move_that_may_be_listed_is_counted() -> None:
    report = tonight()
    row = run_row(report)
    assert set(moves(report, row, previous(**{BROKEN: GREEN}))) == {("main", OLD, NEW)}
    assert list(moves(report, row, previous())) == []


def test_previous_survives_its_file() -> None:
    known = previous(**{BROKEN: GREEN, OTHER: RED})
    assert from_jsonable(Previous, loads(dumps(known))) == known


def test_the_report_leads_with_what_changed() -> None:
    report = tonight()
    known = previous(**{BROKEN: GREEN, OTHER: RED, FINE: RED})
    page = render_markdown(replace(report, since=since(report, run_row(report), known)))
    lines = page.splitlines()
    assert lines[4] == "## Since the previous run"
    assert lines[6].endswith(": 1 newly failing, 1 fixed, 1 still failing.")
    assert lines[8].startswith(f"- **{BROKEN}-")
    quiet = replace(report, cells=[cell for cell in report.cells if cell.id.startswith(FINE)])
    assert since(quiet, run_row(quiet), previous(**{FINE: GREEN})).text.endswith(": no cell changed, none fails.")


def test_an_undecided_night_does_not_read_like_one_without_a_change() -> None:
    report = replace(tonight(), cells=[replace(one, outcome=Outcome.ERROR, findings=[]) for one in tonight().cells])
    found = since(report, run_row(report), previous(**{OTHER: GREEN}))
    assert found.text.endswith(": 3 undecided.")
    assert "none fails" not in found.text
