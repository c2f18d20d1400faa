"""The live view of a run: its phases, and what -q, -v, --color and --durations change."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from harness.campaign.progress import Judging, Progress
from harness.infra.screen import VIEW
from harness.reporting.console import print_report
from tests.reporting.test_console import Clock, Terminal
from tests.sample_report import passing_report, sample_report


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def run(stream: io.StringIO) -> Progress:
    """Two agents import; of two cells one fails, and the other one runs."""
    clock = Clock()
    progress = Progress(stream, clock)
    progress.start(2, {"bad": 2, "long": 1}, agents=2)
    progress.agent_started()
    progress.agent_started()
    clock.now += 30
    progress.agent_loaded(30.0)
    progress.agent_loaded(30.5)
    for cell in ("bad", "long"):
        progress.cell_started(cell)
    progress.cell_finished("bad", "failed", 2.0)
    failed = next(cell for cell in sample_report().cells if cell.findings)
    progress.failed(replace(failed, id="bad"))
    return progress


def lines(stream: io.StringIO) -> list[str]:
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_log_file_has_a_line_per_phase_and_the_failure_as_it_comes() -> None:
    stream = io.StringIO()
    run(stream).stop()
    *phases, ended, failure = lines(stream)
    assert phases == ["importing torch and Megatron", "imported in 30 s", "imported in 30 s"]
    assert ended == "[1/2] failed   bad 2.0 s"
    assert failure.startswith("FAIL  bad: metadata: ")


def test_a_terminal_shows_the_phase_until_cells_run() -> None:
    clock = Clock()
    progress = Progress(Terminal(), clock)
    progress.start(2, {"a": 1, "b": 1}, agents=1)
    progress.agent_started()
    clock.now += 12
    drawn = Console(file=io.StringIO(), width=80)
    drawn.print(progress)
    importing = drawn.file.getvalue()  # type: ignore[attr-defined]
    assert "importing" in importing
    assert "12 s" in importing
    progress.agent_loaded(12.0)
    progress.cell_started("a")
    drawn.print(progress)
    progress.stop()
    later = drawn.file.getvalue()[len(importing) :]  # type: ignore[attr-defined]
    assert "importing" not in later
    assert "1 running" in later


def test_quiet_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VIEW, "quiet", True)
    for stream in (io.StringIO(), Terminal()):
        run(stream).stop()
        judging = Judging(stream, Clock())
        judging.start(3)
        judging.enter("writing the reports")
        judging.stop()
        assert stream.getvalue() == ""


def test_quiet_leaves_what_did_not_pass_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VIEW, "quiet", True)
    stream = io.StringIO()
    print_report(sample_report(), ["report.html"], stream)
    failed = next(cell for cell in sample_report().cells if cell.outcome.value == "FAIL")
    passed = next(cell for cell in sample_report().cells if cell.outcome.value == "PASS")
    assert f"FAIL {failed.id}" in stream.getvalue()
    assert passed.id not in stream.getvalue()
    assert lines(stream)[-1].startswith("FAIL: ")


def test_verbose_shows_cells_as_they_start_and_every_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VIEW, "verbose", True)
    stream = io.StringIO()
    run(stream).stop()
    assert {"running bad", "running long"} <= set(lines(stream))
    print_report(sample_report(), [], stream)
    findings = [
        item.message for cell in sample_report().cells for item in cell.findings if cell.outcome.value == "FAIL"
    ]
    assert len(findings) > 2
    assert [message for message in findings if message not in stream.getvalue()] == []


@pytest.mark.parametrize(
    ("color", "stream", "variable", "coloured"),
    [
        ("always", io.StringIO, "NO_COLOR", True),
        ("never", Terminal, "FORCE_COLOR", False),
        ("auto", io.StringIO, "", False),
        ("auto", Terminal, "", True),
        ("auto", Terminal, "NO_COLOR", False),
    ],
)
def test_color_overrides_the_terminal_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, color: str, stream: type[io.StringIO], variable: str, coloured: bool
) -> None:
    monkeypatch.setattr(VIEW, "color", color)
    if variable:
        monkeypatch.setenv(variable, "1")
    out = stream()
    print_report(passing_report(), [], out)
    assert ("\x1b[1;32m" in out.getvalue()) is coloured


def test_durations_lists_the_slowest_cells_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VIEW, "durations", 2)
    report = passing_report()
    cells = [replace(cell, timing={"wall_s": wall}) for cell, wall in zip(report.cells, (1.0, 30.0, 4.0, 2.0))]
    stream = io.StringIO()
    print_report(replace(report, cells=cells), [], stream)
    slow = [line.split() for line in lines(stream) if line.startswith("slow ")]
    assert slow == [["slow", "30.0", "s", cells[1].id], ["slow", "4.0", "s", cells[2].id]]


def test_judging_names_what_it_does_and_a_terminal_gets_failures_as_they_come() -> None:
    failed = next(cell for cell in sample_report().cells if cell.outcome.value == "FAIL")
    for stream, named in ((io.StringIO(), False), (Terminal(), True)):
        judging = Judging(stream, Clock())
        judging.start(2)
        judging.judged(failed)
        judging.enter("writing the reports")
        judging.stop()
        assert (failed.id in stream.getvalue()) is named
    log = io.StringIO()
    judging = Judging(log, Clock())
    judging.start(2)
    judging.enter("writing the reports")
    assert lines(log) == ["judging 2 cells", "writing the reports"]
