"""Output on the terminal: progress, tables, problems. Only this file imports rich, and only when something is shown."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from harness.core.errors import InputError
from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.text.durations import duration
from harness.infra.screen import guarded, shown
from harness.judge.report.model import Report, ReportCell, Since
from harness.judge.report.summaries import place_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# CellResult.status -> (word, style). "done" means that the cell ran to its end; the verdict comes with the report.
_STATUS = {
    "completed": ("done", "green"),
    "failed": ("failed", "red"),
    "rejected": ("rejected", "dim"),
    "error": ("error", "yellow"),
}
_STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.XFAIL: "yellow",
    Outcome.XPASS: "bold cyan",
    Outcome.REJECTED: "dim",
    Outcome.ERROR: "bold yellow",
    Outcome.FLAKY: "yellow",
}
_LANES = {LaneVerdict.PASS: ("pass", "green"), LaneVerdict.FAIL: ("FAIL", "bold red"), LaneVerdict.SKIP: ("-", "dim")}
_SHOWN_RUNNING = 6
_QUEUE_CHANGED_S, _QUEUE_SAME_S = 60.0, 600.0  # between plain lines about waiting jobs
_PLAIN_WIDTH = 160  # of tables in a file or a CI log


class Progress:
    """Progress of a run: a live display on a terminal, else one plain line per finished cell.

    The time left is estimated from the finished cells, each weighted by its number of ranks.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._clock = clock
        self._lock = threading.Lock()
        self._console: Console | None = None
        self._live: Any = None
        self._total = 0
        self._ranks: Mapping[str, int] = {}
        self._weight_total = 0
        self._weight_done = 0
        self._running: dict[str, float] = {}
        self._counts = dict.fromkeys(_STATUS, 0)
        self._started = 0.0
        self._queue = ""
        self._queue_printed = -math.inf

    def start(self, total: int, ranks: Mapping[str, int] | None = None) -> None:
        """Show that `total` cells will run; `ranks`: cell id -> number of ranks."""
        self._total, self._ranks = total, ranks or {}
        self._weight_total = sum(self._ranks.values()) or total
        self._started = self._clock()
        self._console = _console(self._stream)
        # Ask the stream, not rich: with FORCE_COLOR rich takes a CI log for a terminal.
        if self._stream.isatty() and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(self, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def cell_started(self, cell: str) -> None:
        with self._lock:
            self._running[cell] = self._clock()

    def cell_finished(self, cell: str, status: str, seconds: float) -> None:
        """`status`: that of the CellResult (completed, failed, rejected, error); any other is not counted."""
        with self._lock:
            self._running.pop(cell, None)
            if status not in _STATUS:  # a damaged journal
                return
            self._counts[status] += 1
            self._weight_done += self._ranks.get(cell, 1)
            line = self._line(cell, status, seconds)
        if self._console is not None and (self._live is None or status in ("failed", "error")):
            self._console.print(line, soft_wrap=True)
            self._stream.flush()

    def queue(self, text: str) -> None:
        """Show why jobs wait in the queue, "" for none: in the live display, else as plain lines.

        A plain line is printed at most every 60 s, or every 600 s when the text has not changed.
        """
        now = self._clock()
        with self._lock:
            wait_s = _QUEUE_CHANGED_S if text != self._queue else _QUEUE_SAME_S
            self._queue = text
        if text and self._live is None and self._console is not None and now >= self._queue_printed + wait_s:
            self._queue_printed = now
            self.note(text)

    def note(self, text: str) -> None:
        """Print a line above the live display."""
        if self._console is not None:
            self._console.print(shown(text), soft_wrap=True)
            self._stream.flush()

    def stop(self) -> None:
        """End the live display. Call it however the run ends; a second call does nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def seconds_left(self) -> float | None:
        """Estimated seconds until the end of the run; None until a cell has finished."""
        if not self._weight_done:
            return None
        rate = self._weight_done / max(self._clock() - self._started, 1e-9)
        return max(self._weight_total - self._weight_done, 0) / rate

    def _line(self, cell: str, status: str, seconds: float) -> RenderableType:
        from rich.text import Text

        word, style = _STATUS[status]
        width = len(str(self._total))
        text = Text(f"[{sum(self._counts.values()):>{width}}/{self._total}] ")
        return text.append(f"{word:<8}", style=style).append(f" {shown(cell)} {seconds:.1f} s")

    def __rich__(self) -> RenderableType:
        """The live display: bar, counts and times on two lines, then the cells that run now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            running, counts, now = list(self._running.items()), dict(self._counts), self._clock()
            left, queue = self.seconds_left(), self._queue
        done = sum(counts.values())
        head = Text(f"{done}/{self._total} cells", style="bold", no_wrap=True, overflow="ellipsis")
        head.append(f"  {len(running)} running", style="not bold")
        for status in ("failed", "error", "rejected"):
            if counts[status]:
                word, style = _STATUS[status]
                head.append(f"  {counts[status]} {word}", style=f"not bold {style}")
        times = f"  {duration(now - self._started)} elapsed" + (f", about {duration(left)} left" if left else "")
        head.append(times, style="not bold dim")
        lines = Table.grid(expand=True)
        lines.add_row(ProgressBar(total=max(self._weight_total, 1), completed=self._weight_done))
        lines.add_row(head)
        if queue:
            lines.add_row(Text(f"  {shown(queue)}", style="dim", no_wrap=True, overflow="ellipsis"))
        for cell, since in running[:_SHOWN_RUNNING]:
            text = Text(f"  {shown(cell)}", no_wrap=True, overflow="ellipsis")
            lines.add_row(text.append(f"  {duration(now - since)}", style="dim"))
        if len(running) > _SHOWN_RUNNING:
            lines.add_row(Text(f"  and {len(running) - _SHOWN_RUNNING} more", style="dim"))
        return lines


def print_report(
    report: Report, paths: Sequence[Path | str], stream: TextIO | None = None, *, code: int | None = None
) -> None:
    """Print the cells, rejected combinations with their arithmetic, failures, verdict, exit code and report paths.

    `code`: exit code of the process; None for that of the verdict.
    """
    from rich.text import Text

    console = _console(stream or sys.stdout)
    if report.cells:
        console.print(_cell_table(report.cells))
    if report.rejected:
        console.print(Text(f"Rejected combinations: {len(report.rejected)}", style="bold"))
        for item in report.rejected:
            reason = f"  {item.id}  {item.rule}: {item.reason}"
            console.print(Text(shown(reason)), soft_wrap=True)
        console.print()
    for cell in report.cells:
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


def _print_since(console: Console, since: Since) -> None:
    from rich.text import Text

    console.print(Text(shown(since.text), style="bold"), soft_wrap=True)
    for cell in since.cells:
        console.print(Text(shown(f"  {cell.change}  {cell.id}: {cell.text}")), soft_wrap=True)


def print_lines(lines: Iterable[tuple[str, str]], stream: TextIO | None = None) -> None:
    """Print lines of (text, style); styles as rich names them, e.g. "bold red", or empty."""
    from rich.text import Text

    console = _console(stream or sys.stdout)
    for text, style in lines:
        console.print(Text(shown(text), style=style), soft_wrap=True)


def say(text: str) -> None:
    """Print progress on stderr before cells run, when a step takes time."""
    _console(sys.stderr).print(shown(text), markup=False, highlight=False)


def print_problems(error: InputError, stream: TextIO | None = None) -> None:
    """Print every problem of the input on one line each, to standard error."""
    from rich.text import Text

    console = _console(stream or sys.stderr)
    for problem in error.problems:
        line = Text("error: ", style="bold red").append(
            shown(str(problem)).replace("\n", " "), style="not bold default"
        )
        console.print(line, soft_wrap=True)
    if len(error.problems) > 1:
        console.print(Text(f"{len(error.problems)} problems"), soft_wrap=True)


def _console(stream: TextIO) -> Console:
    """Rich decides on colour (terminal, NO_COLOR, TERM); files and CI logs get a width that keeps cell ids whole."""
    from rich.console import Console

    console = Console(file=guarded(stream), highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
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
        outcome = Text(cell.outcome.value, style=_STYLES[cell.outcome])
        table.add_row(outcome, name, *(Text(word, style=style) for word, style in verdicts), Text(wall))
    return table


def _print_finding(console: Console, cell: ReportCell) -> None:
    """Print the first finding of a cell with its location, and the command that runs only this cell."""
    from rich.text import Text

    head = Text(cell.outcome.value, style=_STYLES[cell.outcome]).append(f" {shown(cell.id)}", style="not bold default")
    console.print(head, soft_wrap=True)
    if reason := cell.reason or (f"passed on attempt {cell.attempts}" if cell.outcome is Outcome.FLAKY else ""):
        console.print(Text(f"  {shown(reason)}"), soft_wrap=True)
    if cell.findings:
        first = cell.findings[0]
        console.print(Text(f"  {first.lane.value}: {shown(first.message)}"), soft_wrap=True)
        if place := place_text(first.where):
            console.print(Text(f"  at {shown(place)}"), soft_wrap=True)
        if first.known:
            console.print(Text(f"  known: {shown(first.known)}"), soft_wrap=True)
        if first.fault_class:
            console.print(Text(f"  probable fault: {shown(first.fault_class)}"), soft_wrap=True)
        if len(cell.findings) > 1:
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
