"""What the terminal shows, on a terminal and in a log file."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from harness.campaign.progress import Expected, Progress
from harness.core.errors import InputError, Problem
from harness.core.outcomes import Outcome
from harness.core.run.report import CellSince, ChangeKind, Report, Since
from harness.core.run.run_plan import Selection
from harness.reporting.console import print_problems, print_report
from harness.reporting.html.report import render_html
from tests.judge.checks.numerics.test_ended import IN_CODE, _cut_off_all
from tests.judge.simulator import config_of, evidence_for, the_only_finding
from tests.sample_report import hostile_report, passing_report, sample_report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def run(progress: Progress, clock: Clock) -> None:
    progress.start(4, {"small": 1, "big": 8, "bad": 2, "lost": 1})
    for cell, status in (("small", "completed"), ("bad", "failed"), ("lost", "error")):
        progress.cell_started(cell)
        clock.now += 2.125
        progress.cell_finished(cell, status, 2.125)
    progress.cell_started("big")


def test_a_log_file_repeats_rarely_why_jobs_wait() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    progress.start(4)
    heard = [(0, "2 jobs: Priority"), (8, "1 job: Resources"), (70, "1 job: Resources"), (71, "1 job: PartitionDown")]
    heard += [(300, ""), (301, "1 job: PartitionDown"), (400, "1 job: PartitionDown"), (1000, "1 job: PartitionDown")]
    shown = []
    for seconds, text in heard:
        clock.now = 100.0 + seconds
        before = len(stream.getvalue())
        progress.queue(text)
        shown += [(seconds, line) for line in stream.getvalue()[before:].splitlines()]
    progress.stop()
    assert shown == [(0, "2 jobs: Priority"), (71, "1 job: PartitionDown"), (301, "1 job: PartitionDown")] + [
        (1000, "1 job: PartitionDown")
    ]


def test_a_terminal_shows_why_jobs_wait_until_none_does() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock)
    progress.start(4)
    progress.queue("2 jobs wait in the queue: Priority (2)")
    console = Console(file=io.StringIO(), width=80)
    console.print(progress)
    progress.queue("")
    console.print(progress)
    progress.stop()
    assert console.file.getvalue().count("Priority (2)") == 1  # type: ignore[attr-defined]


def test_a_log_file_gets_one_plain_line_for_each_finished_cell() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    run(progress, clock)
    progress.stop()
    assert stream.getvalue().splitlines() == [
        "[1/4] done     small 2.1 s",
        "[2/4] failed   bad 2.1 s",
        "[3/4] error    lost 2.1 s",
    ]


def test_counts_line_up_with_the_total() -> None:
    stream = io.StringIO()
    progress = Progress(stream, Clock())
    progress.start(120)
    progress.cell_finished("a", "rejected", 0.0)
    assert stream.getvalue() == "[  1/120] rejected a 0.0 s\n"


def test_between_a_failure_and_the_verdict_no_fixed_cells_are_listed() -> None:
    report, stream = sample_report(), io.StringIO()
    change = {"since": "s", "since_run": "r", "good": "", "good_run": ""}
    cells = [
        CellSince(id=cell.id, change=kind, **change)
        for cell, kind in zip(report.cells, (ChangeKind.FIXED, ChangeKind.STILL_FAILING))
    ]
    print_report(replace(report, since=Since(run_id="r", started="s", cells=cells)), [], stream)
    said = stream.getvalue()
    assert "1 fixed, 1 still failing" in said and f"still failing  {report.cells[1].id}" in said
    assert f"fixed  {report.cells[0].id}" not in said


@pytest.mark.parametrize(("name", "value"), [("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1")])
def test_a_log_file_with_forced_colour_gets_no_live_display(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    run(progress, clock)
    progress.stop()
    assert len(stream.getvalue().splitlines()) == 3
    assert not re.search(r"\x1b\[\??\d*[A-HJKhl]", stream.getvalue())  # no cursor moves


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock)
    run(progress, clock)
    progress.stop()
    assert len(stream.getvalue().splitlines()) == 3 and "\x1b" not in stream.getvalue()


def test_a_terminal_shows_counts_running_cells_and_time_left_and_keeps_failures() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock)
    run(progress, clock)
    progress._live.refresh()
    progress.stop()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "3/4 cells  1 running  1 failed  1 error  6 s elapsed, about 13 s left" in shown
    assert "  big  0 s" in shown
    assert "[2/4] failed   bad 2.1 s" in shown and "[1/4]" not in shown
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h") == 1  # the cursor comes back


def test_stop_may_be_called_twice_and_before_start() -> None:
    progress = Progress(Terminal(), Clock())
    progress.stop()
    progress.start(1)
    progress.stop()
    progress.stop()


@pytest.mark.parametrize("width", ["10", "20", "39"])
def test_a_narrow_terminal_breaks_nothing(monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock)
    run(progress, clock)
    for index in range(12):
        progress.cell_started(f"tp2-pp4-cp1-a-very-long-name-{index}")
    progress._live.refresh()
    progress.stop()
    print_report(sample_report(), ["report.html"], stream)
    assert "and 7 more" in stream.getvalue() or width == "10"
    assert "exit code 1" in stream.getvalue()


def _long_report() -> Report:
    """The sample, with a cell whose id has 59 characters."""
    report = sample_report()
    failing = next(cell for cell in report.cells if cell.outcome is Outcome.FAIL)
    long = replace(failing, id=f"tp2-pp4-cp2-dp2-vpp2-bridge_offline-selective-distopt-{failing.id[-8:]}")
    return replace(report, cells=[*report.cells, long])


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_word_and_no_id_is_broken_on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    report, terminal, file = _long_report(), Terminal(), io.StringIO()
    print_report(report, ["reports/x/report.html"], terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    longest = max(report.cells, key=lambda cell: len(cell.id)).id
    assert all(cell.id in text for cell in report.cells)
    lines = [line for line in text.splitlines() if "reproduce: " not in line]
    assert max(map(len, lines)) <= width
    monkeypatch.delenv("COLUMNS")
    print_report(report, ["reports/x/report.html"], file)
    assert set(text.split()) - set(file.getvalue().split()) <= {"metadata", "numerics", "throughput"}
    assert (f"FAIL    {longest}\n        metadata FAIL" in text) is (width < 110)


def test_the_frame_of_an_exception_of_upstream_is_shown_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "raised")
    message = the_only_finding(evidence, "ended").message
    report = _long_report()
    failing = report.cells[-1]
    report = replace(report, cells=[replace(failing, findings=[replace(failing.findings[0], message=message)])])
    stream = io.StringIO()
    print_report(report, [], stream)
    assert set(f"{IN_CODE};".split()) <= set(stream.getvalue().split())
    assert max(len(line) for line in stream.getvalue().splitlines() if "reproduce: " not in line) <= 80


def test_the_lines_of_a_failure_while_cells_run_are_broken_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream, clock = Terminal(), Clock()
    progress = Progress(stream, clock)
    progress.start(2)
    progress.failed(_long_report().cells[-1])
    progress.stop()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert any("no packed metadata reached this rank" in " ".join(line.split()) for line in [shown.replace("\n", " ")])
    assert max(len(line.rstrip()) for line in shown.splitlines() if "tp2-" not in line) <= 60


def test_time_left_weighs_cells_by_their_ranks() -> None:
    clock = Clock()
    progress = Progress(io.StringIO(), clock)
    progress.start(3, {"a": 1, "b": 1, "c": 8})
    assert progress.state.seconds_left() is None
    progress.agent_started()
    clock.now += 60.0  # an import is no time of cells
    progress.agent_loaded(60.0)
    progress.cell_started("a")
    progress.cell_started("b")
    assert progress.state.seconds_left() is None
    clock.now += 4.0
    progress.cell_finished("a", "completed", 4.0)
    progress.cell_finished("b", "completed", 4.0)
    assert progress.state.seconds_left() == pytest.approx(16.0)


def test_the_history_tells_how_long_a_run_takes_before_a_cell_has_ended() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock)
    expected = Expected(cells={"slow": 60.0, "quick": 20.0, "gone": 500.0}, at_once=2.0)
    progress.start(3, {"slow": 1, "quick": 1, "new": 2}, expected=expected)
    assert stream.getvalue() == "about 1 min 20 s, by the history\n"  # 60 + 20, and 2 ranks of the new one at 40 each
    clock.now += 10
    assert progress.state.seconds_left() == pytest.approx(70.0)
    clock.now += 100
    assert progress.state.seconds_left() == 0.0


def test_ended_cells_correct_what_the_history_says() -> None:
    clock = Clock()
    progress = Progress(io.StringIO(), clock)
    progress.start(2, {"slow": 1, "quick": 1}, expected=Expected(cells={"slow": 60.0, "quick": 20.0}))
    progress.cell_started("quick")
    clock.now += 10
    progress.cell_finished("quick", "completed", 10.0)
    assert progress.state.seconds_left() == pytest.approx(30.0)  # half as long as then


def test_without_a_history_nothing_is_said_until_a_cell_has_ended() -> None:
    stream = io.StringIO()
    progress = Progress(stream, Clock())
    progress.start(1, {"a": 1}, expected=Expected(cells={"other": 3.0}))
    assert (stream.getvalue(), progress.state.seconds_left()) == ("", None)


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = r"\x1b\[(?:\d+;)*3[1-7]m"
    with_colour, without = Terminal(), Terminal()
    print_report(sample_report(), [], with_colour)
    monkeypatch.setenv("NO_COLOR", "1")
    print_report(sample_report(), [], without)
    assert re.search(coloured, with_colour.getvalue()) and not re.search(coloured, without.getvalue())


def test_a_log_file_gets_whole_ids_and_no_escape_codes() -> None:
    stream = io.StringIO()
    report = sample_report()
    print_report(report, ["reports/x/report.html"], stream)
    text = stream.getvalue()
    assert all(cell.id in text for cell in report.cells) and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 160


def test_the_report_shows_cells_then_rejected_then_failures_then_the_verdict() -> None:
    stream = io.StringIO()
    report = sample_report()
    failing = next(cell for cell in report.cells if cell.outcome is Outcome.FAIL)
    print_report(report, ["reports/x/report.html", "reports/x/report.json"], stream)
    text = stream.getvalue()
    parts = [
        "PASS     tp1-pp1-cp1-unpacked",
        "cp-alignment: seq_length 62 % (2 * cp) = 62 % 4 = 2, must be 0",
        f"FAIL {failing.id}\n  metadata: no packed metadata reached this rank",
        "  at rank 3, stage 1, tp 1, cp 0, dp 0, layer 2, micro-batch 0, field cu_seqlens_q",
        "probable fault: A metadata: middle stages without cu_seqlens",
        f"reproduce: harness run matrices/smoke.yaml --only {failing.id}",
        "report: reports/x/report.html",
        "report: reports/x/report.json",
        "FAIL: 6 PASS, 2 FAIL, 1 XFAIL, 2 REJECTED, 1 ERROR, 1 FLAKY in 1 min 02 s; exit code 1",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.rstrip().endswith("exit code 1")


def test_a_green_report_ends_with_exit_code_0() -> None:
    stream = io.StringIO()
    print_report(passing_report(), [], stream)
    assert stream.getvalue().splitlines()[-1] == "PASS: 4 PASS in 1 min 02 s; exit code 0"


def test_a_selection_is_shown_on_the_terminal_and_on_the_page() -> None:
    selection = Selection(strength=3, cells=9, allowed=12, covered=4, possible=4)
    report = replace(passing_report(), selection=selection)
    stream = io.StringIO()
    print_report(report, [], stream)
    text = "covering 3: 9 of 12 cells cover 4 of 4 triples; 3 cells left out"
    assert f"selected: {text}" in stream.getvalue()
    assert text in render_html(report)
    assert "cells left out" not in render_html(passing_report())


def test_a_run_without_cells_has_a_verdict() -> None:
    stream = io.StringIO()
    print_report(replace(passing_report(), cells=[], counts={}), [], stream)
    assert "exit code 0" in stream.getvalue()


def test_messages_cannot_control_the_terminal_or_use_markup() -> None:
    stream = Terminal()
    report = hostile_report()
    marked = replace(report.cells[1], id="[bold]x[/bold]", outcome=Outcome.FAIL, reason="[red]r[/red] :smile:")
    print_report(replace(report, cells=[*report.cells, marked]), [], stream)
    assert "\x1b[31m &" not in stream.getvalue() and "\\x1b[31m" in stream.getvalue()
    assert "[bold]x[/bold]" in stream.getvalue() and "[red]r[/red] :smile:" in stream.getvalue()


def test_every_problem_of_the_input_has_its_own_line() -> None:
    stream = io.StringIO()
    long = Problem(message="unknown key " + "x" * 300, file="m.yaml", line=3, key="matrix.tpp", allowed="tp, pp")
    print_problems(InputError([long, Problem(message="two\nlines")]), stream)
    lines = stream.getvalue().splitlines()
    assert lines == [f"error: {long}", "error: two lines", "2 problems"]


def test_problems_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems(InputError("no such file"))
    assert capsys.readouterr() == ("", "error: no such file\n")


def test_importing_the_console_does_not_import_rich_and_the_report_not_matplotlib() -> None:
    code = (
        "import sys, harness.reporting.console, harness.reporting.html.report\n"
        "sys.exit(', '.join({'rich', 'jinja2', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
