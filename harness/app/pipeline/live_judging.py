"""Judges cells while others still run: failures are shown as they come, and --maxfail counts them.

The verdicts are shown only; the report judges every cell again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from harness.app.pipeline.baselines import read_baselines
from harness.app.pipeline.judging import RunFacts, judge_here, with_compared
from harness.core.outcomes import Outcome
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.infra.runs.evidence_files import read_result
from harness.judge.report.model import ReportCell

MOST_RANKS = 64  # of a cell and what it is compared with; reading more would take the processor from running cells
_FAILED = (Outcome.FAIL, Outcome.XPASS, Outcome.ERROR)


class EnoughFailures(Exception):  # noqa: N818 - not an error: --maxfail asked for it
    """As many cells have failed as --maxfail names."""


class LiveJudging:
    """Judges each cell once it, its control and its partner in interleaved timing have ended."""

    def __init__(
        self, run: RunDir, plan: RunPlan, failed: Callable[[ReportCell], None], most_failures: int | None = None
    ) -> None:
        """`plan`: the whole one, also in a resumed run. `failed`: called with each cell that did not pass."""
        self._run, self._plan, self._failed, self._most = run, plan, failed, most_failures
        self._known = {cell.id: cell for cell in plan.expansion.cells}
        self._needs = {cell.id: with_compared([cell], self._known) for cell in plan.expansion.cells}
        self._ended = {cell for cell in self._known if read_result(run, cell) is not None}
        self._open = set(self._known) - self._ended
        self._for: dict[str, list[str]] = {}  # cell -> cells that are compared with it, and itself
        for name in sorted(self._open):
            for one in self._needs[name]:
                self._for.setdefault(one.id, []).append(name)
        self._facts = RunFacts(before=read_baselines(run))
        self._failures = 0

    def ended(self, cell: str) -> None:
        """Judge what can be judged now that a cell has ended. EnoughFailures when --maxfail is reached."""
        self._ended.add(cell)
        waiting = [name for name in self._for.get(cell, ()) if name in self._open]
        for name in [name for name in waiting if all(one.id in self._ended for one in self._needs[name])]:
            self._open.discard(name)
            self._judge(self._known[name])

    def _judge(self, cell: PlannedCell) -> None:
        compared = self._needs[cell.id]
        ranks = sum(one.config.layout.world_size for one in compared)
        if self._most is None and (ranks > MOST_RANKS or cell.config.timing.turns):  # a clock must not be disturbed
            return
        part = replace(self._plan, expansion=replace(self._plan.expansion, cells=tuple(compared)))
        judged, _ = judge_here(self._run, part, self._facts, datetime.now(timezone.utc).date().isoformat())
        found = judged.cells[cell.id]
        if isinstance(found, ReportCell) and found.outcome in _FAILED:
            self._failed(found)
            self._failures += 1
            if self._most is not None and self._failures >= self._most:
                raise EnoughFailures
