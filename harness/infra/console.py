"""Output on the terminal: tables and problems. rich is imported only when something is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from harness.core.errors import InputError
from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.text.durations import duration
from harness.infra.screen import VIEW, guarded, log, shown
from harness.judge.report.model import Report, ReportCell, ReportRejected, Since
from harness.judge.report.summaries import place_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.XFAIL: "yellow",
    Outcome.XPASS: "bold cyan",
    Outcome.REJECTED: "dim",
    Outcome.ERROR: "bold yellow",
    Outcome.FLAKY: "yellow",
}
_LANES = {LaneVerdict.PASS: ("pass", "green"), LaneVerdict.FAIL: ("FAIL", "bold red"), LaneVerdict.SKIP: ("-", "dim")}
_COLOURS = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")  # that --color overrides
_PLAIN_WIDTH = 160  # of tables in a file or a CI log


def print_report(
    report: Report, paths: Sequence[Path | str], stream: TextIO | None = None, *, code: int | None = None
) -> None:
    """Print the cells, rejected combinations with their arithmetic, failures, verdict, exit code and report paths.

    `code`: exit code of the process; None for that of the verdict.
    """
    from rich.text import Text

    console = console_on(stream or sys.stdout)
    if report.cells and not VIEW.quiet:
        console.print(_cell_table(report.cells))
    _print_durations(console, report.cells)
    _print_rejected(console, () if VIEW.quiet else report.rejected)
    for cell in () if VIEW.quiet else report.cells:
        for ratio in cell.throughput.ratios:
            console.print(Text(shown(f"time  {cell.id}  {ratio.what}: {ratio.text}")), soft_wrap=True)
    for outcome in (Outcome.XFAIL, Outcome.XPASS, Outcome.FLAKY, Outcome.ERROR, Outcome.FAIL):
        for cell in report.cells:
            if cell.outcome is outcome:
                _print_finding(console, cell)
    if report.selection:
        selected = f"selected: {report.selection.text}; {report.selection.left_out} cells left out"
        console.print(Text(shown(selected)), soft_wrap=True)
    if report.since is not None:
        _print_since(console, report.since)
    for path in paths:
        console.print(Text(shown(f"report: {path}")), soft_wrap=True)
    console.print(Text("\n".join([*map(shown, report.problems), ""]), style="bold yellow"), soft_wrap=True, end="")
    console.print(_verdict(report, report.exit_code if code is None else code), soft_wrap=True)


def _print_rejected(console: Console, rejected: Sequence[ReportRejected]) -> None:
    """Rejected combinations with every rule that they break."""
    from rich.text import Text

    if rejected:
        console.print(Text(f"Rejected combinations: {len(rejected)}", style="bold"))
    for item in rejected:
        for rule, reason in [(one.rule, one.reason) for one in item.rejections] or [(item.rule, item.reason)]:
            console.print(Text(shown(f"  {item.id}  {rule}: {reason}")), soft_wrap=True)
    if rejected:
        console.print()


def _print_durations(console: Console, cells: Sequence[ReportCell]) -> None:
    """The slowest cells, as many as --durations asks for."""
    from rich.text import Text

    timed = sorted((cell for cell in cells if "wall_s" in cell.timing), key=lambda cell: -cell.timing["wall_s"])
    for cell in timed[: VIEW.durations]:
        console.print(Text(shown(f"slow  {cell.timing['wall_s']:>7.1f} s  {cell.id}")), soft_wrap=True)


def _print_since(console: Console, since: Since) -> None:
    from rich.text import Text

    console.print(Text(shown(since.text), style="bold"), soft_wrap=True)
    for cell in since.cells:
        console.print(Text(shown(f"  {cell.change}  {cell.id}: {cell.text}")), soft_wrap=True)


def print_lines(lines: Iterable[tuple[str, str]], stream: TextIO | None = None) -> None:
    """Print lines of (text, style); styles as rich names them, e.g. "bold red", or empty."""
    from rich.text import Text

    console = console_on(stream or sys.stdout)
    for text, style in lines:
        console.print(Text(shown(text), style=style), soft_wrap=True)


def say(text: str) -> None:
    """Print progress on stderr before cells run, when a step takes time."""
    if VIEW.silent:
        log(text)
        return
    console_on(sys.stderr).print(shown(text), markup=False, highlight=False)


def print_problems(error: InputError, stream: TextIO | None = None) -> None:
    """Print every problem of the input on one line each, to standard error."""
    from rich.text import Text

    console = console_on(stream or sys.stderr)
    for problem in error.problems:
        line = Text("error: ", style="bold red").append(
            shown(str(problem)).replace("\n", " "), style="not bold default"
        )
        console.print(line, soft_wrap=True)
    if len(error.problems) > 1:
        console.print(Text(f"{len(error.problems)} problems"), soft_wrap=True)


def console_on(stream: TextIO) -> Console:
    """Rich decides on colour (terminal, NO_COLOR, TERM), unless --color does; files and CI logs get a width that keeps
    cell ids whole."""
    from rich.console import Console

    colour: dict[str, Any] = {"always": {"force_terminal": True}, "never": {"no_color": True}}.get(VIEW.color, {})
    environment = {name: value for name, value in os.environ.items() if VIEW.color == "auto" or name not in _COLOURS}
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "quiet": VIEW.silent}
    console = Console(file=guarded(stream), _environ=environment, **plain, **colour)
    if not stream.isatty():
        console.width = max(console.width, _PLAIN_WIDTH)
    return console


def _cell_table(cells: Sequence[ReportCell]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("outcome", no_wrap=True)
    table.add_column("cell", overflow="fold")
    lanes = list(cells[0].lanes)
    for lane in lanes:
        table.add_column(lane.value, no_wrap=True)
    table.add_column("wall", justify="right", no_wrap=True)
    for cell in cells:
        verdicts = [_LANES[cell.lanes.get(lane, LaneVerdict.SKIP)] for lane in lanes]
        name = Text(shown(cell.id)).append(
            "  (control)" if cell.role == "control" or cell.control is None else "", style="dim"
        )
        wall = f"{cell.timing['wall_s']:.1f} s" if "wall_s" in cell.timing else "-"
        outcome = Text(cell.outcome.value, style=STYLES[cell.outcome])
        table.add_row(outcome, name, *(Text(word, style=style) for word, style in verdicts), Text(wall))
    return table


def _print_finding(console: Console, cell: ReportCell) -> None:
    """Print the first finding of a cell, with -v all, each with its place; and the command that runs only this cell."""
    from rich.text import Text

    head = Text(cell.outcome.value, style=STYLES[cell.outcome]).append(f" {shown(cell.id)}", style="not bold default")
    console.print(head, soft_wrap=True)
    if reason := cell.reason or (f"passed on attempt {cell.attempts}" if cell.outcome is Outcome.FLAKY else ""):
        console.print(Text(f"  {shown(reason)}"), soft_wrap=True)
    for finding in cell.findings if VIEW.verbose else cell.findings[:1]:
        console.print(Text(f"  {finding.lane.value}: {shown(finding.message)}"), soft_wrap=True)
        if place := place_text(finding.where):
            console.print(Text(f"  at {shown(place)}"), soft_wrap=True)
        if finding.known:
            console.print(Text(f"  known: {shown(finding.known)}"), soft_wrap=True)
        if finding.fault_class:
            console.print(Text(f"  probable fault: {shown(finding.fault_class)}"), soft_wrap=True)
    if len(cell.findings) > 1 and not VIEW.verbose:
        console.print(Text(f"  {len(cell.findings) - 1} more in the report", style="dim"), soft_wrap=True)
    if cell.outcome in (Outcome.FAIL, Outcome.ERROR) and cell.reproduce:
        console.print(Text(f"  reproduce: {shown(cell.reproduce)}"), soft_wrap=True)
    console.print()


def _verdict(report: Report, code: int) -> RenderableType:
    from rich.text import Text

    style = {"pass": "bold green", "fail": "bold red"}.get(report.verdict, "bold yellow")
    counts = ", ".join(f"{count} {outcome.value}" for outcome, count in report.counts.items() if count)
    wall = f" in {duration(report.timing['wall_s'])}" if "wall_s" in report.timing else ""
    return Text(shown(report.verdict.upper()), style=style).append(
        f": {counts}{wall}; exit code {code}", style="not bold default"
    )
