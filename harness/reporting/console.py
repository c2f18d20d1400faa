"""Output on the terminal: tables and problems. rich is imported only when something is shown."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from harness.core.errors import InputError
from harness.core.outcomes import Lane, LaneVerdict, Outcome, place_text
from harness.core.run.report import ChangeKind, Report, ReportCell, ReportRejected, Since
from harness.core.text import counted, duration
from harness.infra.screen import VIEW, broken, guarded, log, shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.XFAIL: "yellow",
    Outcome.XPASS: "bold cyan",
    Outcome.REJECTED: "dim",
    Outcome.ERROR: "bold yellow",
    Outcome.FLAKY: "yellow",
    Outcome.NOT_RUN: "dim",
}
_LANES = {
    LaneVerdict.PASS: ("pass", "green"),
    LaneVerdict.PARTIAL: ("part", "yellow"),
    LaneVerdict.FAIL: ("FAIL", "bold red"),
    LaneVerdict.SKIP: ("-", "dim"),
}
_COLOURS = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")  # that --color overrides
_PLAIN_WIDTH = 160  # of tables in a file or a CI log
_MIN_WIDTH = 20  # lines are not broken to less
_CONTROL = "  (control)"


def print_report(
    report: Report, paths: Sequence[Path | str], stream: TextIO | None = None, *, code: int | None = None
) -> None:
    """Print the cells, rejected combinations with their arithmetic, failures, verdict, exit code and report paths.

    `code`: exit code of the process; None for that of the verdict.
    """
    console = console_on(stream or sys.stdout)
    if report.cells and not VIEW.quiet:
        _print_cells(console, report.cells)
    _print_durations(console, report.cells)
    _print_rejected(console, () if VIEW.quiet else report.rejected)
    _print_notes(console, () if VIEW.quiet else report.cells)
    for outcome in (Outcome.NOT_RUN, Outcome.XFAIL, Outcome.XPASS, Outcome.FLAKY, Outcome.ERROR, Outcome.FAIL):
        for cell in report.cells:
            if cell.outcome is outcome:
                _print_finding(console, cell)
    if report.selection:
        _print(console, f"selected: {report.selection.text}; {report.selection.left_out} cells left out")
    if report.since is not None:
        _print_since(console, report.since)
    if report.origin is not None and not VIEW.quiet:
        _print(console, f"from {report.origin.source}: {report.origin.counts_text}; the report lists them")
    for path in paths:
        _print(console, f"report: {path}")
    for problem in [*report.problems, *filter(None, [report.faults_text])]:
        _print(console, problem, "bold yellow")
    console.print(_verdict(console, report, report.exit_code if code is None else code), soft_wrap=True)


def _print_rejected(console: Console, rejected: Sequence[ReportRejected]) -> None:
    """Print rejected combinations with every rule that they break."""
    if rejected:
        _print(console, f"Rejected combinations: {len(rejected)}", "bold")
    for combination in rejected:
        for rule, reason in [(rejection.rule, rejection.reason) for rejection in combination.rejections] or [
            (combination.rule, combination.reason)
        ]:
            _print(console, f"  {combination.id}  {rule}: {reason}")
    if rejected:
        console.print()


def _print_notes(console: Console, cells: Sequence[ReportCell]) -> None:
    """Print the times that cells compared, and what cells compared with nothing."""
    for cell in cells:
        for ratio in cell.throughput.ratios:
            _print(console, f"time  {cell.id}  {ratio.what}: {ratio.text}")
    partial = Counter(cell.partial for cell in cells if cell.partial)
    for text, count in partial.items():
        _print(console, f"part  {counted(count, 'cell')}: {text}")


def _print_durations(console: Console, cells: Sequence[ReportCell]) -> None:
    """Print the slowest cells, as many as --durations asks for."""
    timed = sorted((cell for cell in cells if "wall_s" in cell.timing), key=lambda cell: -cell.timing["wall_s"])
    for cell in timed[: VIEW.durations]:
        _print(console, f"slow  {cell.timing['wall_s']:>7.1f} s  {cell.id}")


def _print_since(console: Console, since: Since) -> None:
    _print(console, since.text, "bold")
    for cell in since.cells:
        if cell.change is ChangeKind.FIXED and not VIEW.verbose:
            continue  # counted above; the report has them
        _print(console, f"  {cell.change}  {cell.id}: {cell.text}")


def print_lines(lines: Iterable[tuple[str, str]], stream: TextIO | None = None) -> None:
    """Print lines of (text, style); styles as rich names them, e.g. "bold red", or empty."""
    console = console_on(stream or sys.stdout)
    for text, style in lines:
        _print(console, text, style)


def say(text: str) -> None:
    """Print progress on stderr before cells run, when a step takes time."""
    if VIEW.silent:
        log(text)
        return
    _print(console_on(sys.stderr), text)


def print_problems(error: InputError, stream: TextIO | None = None) -> None:
    """Print every problem of the input on one line each, to standard error."""
    from rich.text import Text

    console = console_on(stream or sys.stderr)
    for problem in error.problems:
        line = Text(fitting(console, f"error: {problem}".replace("\n", " ")))
        line.stylize("bold red", 0, len("error: "))
        console.print(line, soft_wrap=True)
    if len(error.problems) > 1:
        console.print(Text(f"{len(error.problems)} problems"), soft_wrap=True)


def console_on(stream: TextIO) -> Console:
    """Return rich's console on a stream.

    Rich decides on colour (terminal, NO_COLOR, TERM), unless --color does; files and CI logs get a width that keeps
    cell ids whole, unless $COLUMNS gives one.
    """
    from rich.console import Console

    colour: dict[str, Any] = {"always": {"force_terminal": True}, "never": {"no_color": True}}.get(VIEW.color, {})
    environment = {name: value for name, value in os.environ.items() if VIEW.color == "auto" or name not in _COLOURS}
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "quiet": VIEW.silent}
    console = Console(file=guarded(stream), _environ=environment, **plain, **colour)
    if not _has_width(stream):
        console.width = max(console.width, _PLAIN_WIDTH)
    return console


def fitting(console: Console, text: str) -> str:
    """Return the text as it is displayed: on a terminal with lines broken at spaces, and long words whole."""
    return broken(shown(text), max(console.width, _MIN_WIDTH)) if _has_width(console.file) else shown(text)


def _has_width(stream: IO[str]) -> bool:
    """Return whether lines have a length, that of the terminal or $COLUMNS; those of a file may have any."""
    return stream.isatty() or os.environ.get("COLUMNS", "").isdecimal()


def _print(console: Console, text: str, style: str = "") -> None:
    """Print lines of one style."""
    from rich.text import Text

    console.print(Text(fitting(console, text), style=style), soft_wrap=True)


def _print_cells(console: Console, cells: Sequence[ReportCell]) -> None:
    """Print a row per cell, or two lines per cell where the ids leave no room for the columns."""
    from rich.text import Text

    lanes = list(cells[0].lanes)
    columns = 10 + sum(2 + max(len(lane.value), 4) for lane in lanes) + 10  # outcome, lanes, wall time
    if max(len(_name(cell)) for cell in cells) + columns <= console.width:
        console.print(_cell_table(cells, lanes))
        return
    for cell in cells:
        head = Text(f"{cell.outcome.value:<8}", style=STYLES[cell.outcome])
        console.print(head.append_text(_name(cell)), soft_wrap=True)
        line = Text(" " * 8)
        for lane in lanes:
            word, style = _LANES[cell.lanes.get(lane, LaneVerdict.SKIP)]
            line.append(f"{lane.value} ", style="dim").append(f"{word}  ", style=style)
        console.print(line.append(_wall(cell)), soft_wrap=True)


def _name(cell: ReportCell) -> Text:
    from rich.text import Text

    alone = cell.role == "control" or cell.control is None
    return Text(shown(cell.id)).append(_CONTROL if alone else "", style="dim")


def _wall(cell: ReportCell) -> str:
    return f"{cell.timing['wall_s']:.1f} s" if "wall_s" in cell.timing else "-"


def _cell_table(cells: Sequence[ReportCell], lanes: Sequence[Lane]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("outcome", no_wrap=True)
    table.add_column("cell", overflow="fold")
    for lane in lanes:
        table.add_column(lane.value, no_wrap=True)
    table.add_column("wall", justify="right", no_wrap=True)
    for cell in cells:
        verdicts = [_LANES[cell.lanes.get(lane, LaneVerdict.SKIP)] for lane in lanes]
        outcome = Text(cell.outcome.value, style=STYLES[cell.outcome])
        table.add_row(outcome, _name(cell), *(Text(word, style=style) for word, style in verdicts), Text(_wall(cell)))
    return table


def _print_finding(console: Console, cell: ReportCell) -> None:
    """Print the first finding of a cell, with -v all, each with its place; and the command that runs only this cell."""
    from rich.text import Text

    head = Text(cell.outcome.value, style=STYLES[cell.outcome]).append(f" {shown(cell.id)}", style="not bold default")
    console.print(head, soft_wrap=True)
    if reason := cell.reason or (f"passed on attempt {cell.attempts}" if cell.outcome is Outcome.FLAKY else ""):
        _print(console, f"  {reason}")
    for finding in cell.findings if VIEW.verbose else cell.findings[:1]:
        _print(console, f"  {finding.lane.value}: {finding.message}")
        if place := place_text(finding.unsaid):
            _print(console, f"  at {place}")
        if finding.known:
            _print(console, f"  known: {finding.known}")
        if finding.fault_class:
            _print(console, f"  probable fault: {finding.fault_class}")
    if cell.scope:
        _print(console, f"  {cell.scope}")
    if len(cell.findings) > 1 and not VIEW.verbose:
        _print(console, f"  {len(cell.findings) - 1} more in the report", "dim")
    if cell.outcome in (Outcome.FAIL, Outcome.ERROR) and cell.reproduce:
        console.print(Text(f"  reproduce: {shown(cell.reproduce)}"), soft_wrap=True)  # whole, to be copied
    console.print()


def _verdict(console: Console, report: Report, code: int) -> RenderableType:
    from rich.text import Text

    word = shown(report.headline)
    wall = f" in {duration(report.timing['wall_s'])}" if "wall_s" in report.timing else ""
    text = Text(fitting(console, f"{word}: {report.counts_text}{wall}; exit code {code}"))
    text.stylize({"pass": "bold green", "fail": "bold red"}.get(report.verdict, "bold yellow"), 0, len(word))
    return text
