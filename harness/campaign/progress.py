"""The live view of a run: phases, cells, the time left, the judging. On a terminal a live display, else plain lines.

Imports of torch and Megatron do not count as time of cells. Before a cell has ended, the time left comes from the
history, if that knows the cells.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from harness.core.outcomes import Outcome
from harness.core.run.report import ReportCell, ReportRejected
from harness.core.text import counted, duration
from harness.infra.screen import VIEW, shown
from harness.reporting.console import STYLES, console_on, fitting

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

STATUSES = ("completed", "failed", "rejected", "error")  # of CellResult
# CellResult.status -> (word, style). "done" means that the cell ran to its end; the verdict comes with the report.
_STATUS = {
    "completed": ("done", "green"),
    "failed": ("failed", "red"),
    "rejected": ("rejected", "dim"),
    "error": ("error", "yellow"),
}
_SHOWN_RUNNING = 6
_QUEUE_CHANGED_S, _QUEUE_SAME_S = 60.0, 600.0  # between plain lines about waiting jobs
_SHOWN_OUTCOMES = (Outcome.FAIL, Outcome.XPASS, Outcome.ERROR)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the history says of a run's cells: seconds of each that it knows, and how many ran at once on average."""

    cells: Mapping[str, float] = field(default_factory=dict)
    at_once: float = 1.0  # imports and waiting included, so that it may be less than 1


@dataclass(kw_only=True)
class RunState:
    """What is known of a run while it is followed. The clock's seconds are monotonic."""

    clock: Callable[[], float] = time.monotonic
    total: int = 0
    ranks: Mapping[str, int] = field(default_factory=dict)  # cell -> ranks, which weigh it
    agents: int = 1  # allocations
    begun: float = 0.0
    phase: str = ""
    phase_since: float = 0.0
    running: dict[str, float] = field(default_factory=dict)  # cell -> its start
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    weight_done: float = 0.0
    expected: Expected = Expected()
    imports: list[float] = field(default_factory=list)  # seconds of each agent that has imported
    importing: int = 0  # agents
    _busy_s: float = 0.0  # while at least one cell ran
    _busy_since: float = 0.0
    _weights: Mapping[str, float] = field(default_factory=dict)  # cell -> seconds, or ranks

    def start(self, total: int, ranks: Mapping[str, int], agents: int, expected: Expected | None = None) -> None:
        """Begin the run. `ranks`: cell id -> number of ranks, by which cells without an expected time are weighted."""
        self.total, self.ranks, self.agents = total, ranks, max(agents, 1)
        self.expected = expected or Expected()
        history = {cell: seconds for cell, seconds in self.expected.cells.items() if cell in ranks}
        scale = sum(history.values()) / sum(ranks[cell] for cell in history) if history else 1.0
        self._weights = {cell: history.get(cell, scale * count) for cell, count in ranks.items()}
        self.begun = self.clock()
        self.enter("starting")

    def enter(self, phase: str) -> None:
        """Begin a phase of the run: "" while cells run."""
        self.phase, self.phase_since = phase, self.clock()

    def agent_started(self) -> None:
        self.importing += 1
        if not self.running:
            self.enter("importing torch and Megatron")

    def agent_loaded(self, seconds: float) -> None:
        self.importing = max(self.importing - 1, 0)
        self.imports.append(seconds)
        self.enter("")

    def cell_started(self, cell: str) -> None:
        if not self.running:
            self._busy_since = self.clock()
        self.running[cell] = self.clock()
        self.enter("")

    def cell_finished(self, cell: str, status: str) -> None:
        before = bool(self.running)
        self.running.pop(cell, None)
        if before and not self.running:
            self._busy_s += self.clock() - self._busy_since
        if status in self.counts:  # else a damaged journal
            self.counts[status] += 1
            self.weight_done += self._weights.get(cell, 1.0)

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def weight(self) -> float:
        """Of all cells: seconds that they take, or ranks where no time is known."""
        return sum(self._weights.values()) or float(self.total)

    def seconds_left(self) -> float | None:
        """Return an estimate from the ended cells, weighted by their expected times or their ranks, and the imports to
        come.

        Until a cell ends: from the history; None if it knows none of the cells.
        """
        busy = self._busy_s + (self.clock() - self._busy_since if self.running else 0.0)
        if not self.weight_done or not busy:
            has_history = any(cell in self.ranks for cell in self.expected.cells)
            return max(self.weight / self.expected.at_once - (self.clock() - self.begun), 0.0) if has_history else None
        cells = max(self.weight - self.weight_done, 0.0) * busy / self.weight_done
        to_come = max(self.agents - len(self.imports), 0)
        return cells + (to_come * max(self.imports) if self.imports and cells else 0.0)


class Progress:
    """Progress of a run: a live display on a terminal, else plain lines: phases, then one per finished cell."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._clock = clock
        self._lock = threading.Lock()
        self._console: Console | None = None
        self._live: Any = None
        self.state = RunState(clock=clock)
        self._queue = ""
        self._queue_printed = -math.inf

    def start(
        self,
        total: int,
        ranks: Mapping[str, int] | None = None,
        agents: int = 1,
        expected: Expected | None = None,
    ) -> None:
        """Show that `total` cells will run; `ranks`: cell id -> number of ranks; `agents`: that will import torch;
        `expected`: what the history knows."""
        self.state.start(total, ranks or {}, agents, expected)
        if VIEW.quiet:
            return
        self._console = console_on(self._stream)
        self._live = _live(self, self._console, self._stream)
        seconds_left = self.state.seconds_left()
        if seconds_left is not None and self._live is None:
            self.note(f"about {duration(seconds_left)}, by the history")

    def agent_started(self) -> None:
        with self._lock:
            self.state.agent_started()
            first = self.state.importing == 1 and not self.state.imports
        if first and self._live is None:
            self.note("importing torch and Megatron")

    def agent_loaded(self, seconds: float) -> None:
        with self._lock:
            self.state.agent_loaded(seconds)
        if self._live is None:
            self.note(f"imported in {duration(seconds)}")

    def cell_started(self, cell: str) -> None:
        with self._lock:
            self.state.cell_started(cell)
        if VIEW.verbose and self._live is None:
            self.note(f"running {cell}")

    def cell_finished(self, cell: str, status: str, seconds: float) -> None:
        """Count an ended cell.

        `status`: that of the CellResult (completed, failed, rejected, error); any other is not counted.
        """
        with self._lock:
            self.state.cell_finished(cell, status)
            if status not in _STATUS:  # a damaged journal
                return
            line = self._line(cell, status, seconds)
        if self._console is not None and (self._live is None or VIEW.verbose or status in ("failed", "error")):
            self._console.print(line, soft_wrap=True)
            self._stream.flush()

    def failed(self, cell: ReportCell) -> None:
        """Print a cell that was judged and did not pass, with its first finding."""
        if self._console is not None:
            self._console.print(_failure(self._console, cell), soft_wrap=True)
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

    def _line(self, cell: str, status: str, seconds: float) -> RenderableType:
        from rich.text import Text

        word, style = _STATUS[status]
        width = len(str(self.state.total))
        text = Text(f"[{self.state.done:>{width}}/{self.state.total}] ")
        return text.append(f"{word:<8}", style=style).append(f" {shown(cell)} {seconds:.1f} s")

    def __rich__(self) -> RenderableType:
        """Return the live display: bar, counts and times on two lines, then the phase or the cells that run now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            state, now, queue = self.state, self._clock(), self._queue
            running, seconds_left = list(state.running.items()), state.seconds_left()
            lines = Table.grid(expand=True)
            lines.add_row(ProgressBar(total=max(state.weight, 1), completed=state.weight_done))
            lines.add_row(self._head(now, seconds_left))
        if queue:
            lines.add_row(Text(f"  {shown(queue)}", style="dim", no_wrap=True, overflow="ellipsis"))
        if state.phase and not queue:
            lines.add_row(Text(f"  {state.phase}  {duration(now - state.phase_since)}", style="dim", no_wrap=True))
        for cell, since in running[:_SHOWN_RUNNING]:
            text = Text(f"  {shown(cell)}", no_wrap=True, overflow="ellipsis")
            lines.add_row(text.append(f"  {duration(now - since)}", style="dim"))
        if len(running) > _SHOWN_RUNNING:
            lines.add_row(Text(f"  and {len(running) - _SHOWN_RUNNING} more", style="dim"))
        return lines

    def _head(self, now: float, seconds_left: float | None) -> Text:
        """Return e.g. "3/4 cells 1 running 1 failed 6 s elapsed, about 13 s left"."""
        from rich.text import Text

        state = self.state
        head = Text(f"{state.done}/{state.total} cells", style="bold", no_wrap=True, overflow="ellipsis")
        head.append(f"  {len(state.running)} running", style="not bold")
        for status in ("failed", "error", "rejected"):
            if state.counts[status]:
                word, style = _STATUS[status]
                head.append(f"  {state.counts[status]} {word}", style=f"not bold {style}")
        times = f"  {duration(now - state.begun)} elapsed" + (
            f", about {duration(seconds_left)} left" if seconds_left else ""
        )
        return head.append(times, style="not bold dim")


class Judging:
    """The judging of a run: a counter on a terminal; cells that did not pass are printed as they are judged."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._console: Console | None = None
        self._live: Any = None
        self._total = self._done = 0
        self._text, self._since = "", 0.0

    def start(self, total: int) -> None:
        self._total, self._since = total, self._clock()
        if VIEW.quiet:
            return
        self._console = console_on(self._stream)
        self._live = _live(self, self._console, self._stream)
        self.enter(f"judging {counted(total, 'cell')}")

    def enter(self, text: str) -> None:
        """Show what is done now: on a terminal instead of what was done before."""
        self._text = text
        if self._console is not None and self._live is None:
            self._console.print(shown(text), soft_wrap=True)
            self._stream.flush()

    def judged(self, cell: ReportCell | ReportRejected) -> None:
        """Count a cell; one that failed is printed with its first finding."""
        self._done += 1
        self._text = f"judging: {self._done} of {counted(self._total, 'cell')}"
        if self._live is not None and isinstance(cell, ReportCell) and cell.outcome in _SHOWN_OUTCOMES:
            self._live.console.print(_failure(self._live.console, cell), soft_wrap=True)

    def stop(self) -> None:
        """End the live display; a second call does nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __rich__(self) -> RenderableType:
        from rich.text import Text

        text = f"{self._text}  {duration(self._clock() - self._since)}"
        return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _failure(console: Console, cell: ReportCell) -> RenderableType:
    """Return e.g. "FAIL tp2-pp1-...: numerics: the loss differs ..."."""
    from rich.text import Text

    why = f"{cell.first.lane.value}: {cell.first.message}" if cell.first else cell.reason
    text = Text(fitting(console, f"{cell.outcome.value:<5} {cell.id}: {(why.splitlines() or ['no reason'])[0]}"))
    text.stylize(STYLES[cell.outcome], 0, len(cell.outcome.value))
    return text


def _live(shown_: Any, console: Console, stream: TextIO) -> Any:
    """Return a started live display, or None where plain lines are wanted.

    Asks the stream, not rich: with FORCE_COLOR rich takes a CI log for a terminal.
    """
    if not stream.isatty() or console.is_dumb_terminal:
        return None
    from rich.live import Live

    live = Live(shown_, console=console, refresh_per_second=4, transient=True)
    live.start()
    return live
