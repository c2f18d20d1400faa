"""Judges a run directory. Trains nothing and may be repeated."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from harness.app.pipeline.baselines import baseline_problem
from harness.app.pipeline.judging import judge_all
from harness.core.outcomes import Outcome
from harness.core.run.events import Launched, read_events
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.core.secrets import without_secrets
from harness.core.serialization import to_jsonable
from harness.infra.runs.evidence_files import read_result, run_problems
from harness.infra.screen import environment_secrets
from harness.judge.report.build import Seen, report_of
from harness.judge.report.model import Report


def judge(run: RunDir, plan: RunPlan, each: Seen | None = None) -> Report:
    """Judge the files of a run directory; trains nothing and may be repeated. `each`: called with every judged cell."""
    timing = _launch_timing(run)
    judged, seen = judge_all(run, plan, today=datetime.now(timezone.utc).date().isoformat(), each=each)
    wall = {"wall_s": timing["launch_s"]} if "launch_s" in timing else {}  # judging again must not change it
    facts = {**_stacks(plan), **seen.facts()}
    problems = [*run_problems(run, plan), *(one for one in (baseline_problem(run, plan),) if one)]
    report = report_of(plan, judged, timing={**timing, **wall}, provenance=facts, problems=problems)
    return without_secrets(report, environment_secrets())


def ended_as_error(run: RunDir, plan: RunPlan) -> set[str]:
    """Cells that ended as ERROR by themselves: not those that only lack their control."""
    cells = judge(run, plan).cells
    undecided = {cell.id for cell in cells if cell.outcome in (Outcome.ERROR, Outcome.NOT_RUN)}
    return {
        cell.id
        for cell in cells
        # Asked of the result too: a supervisor that is killed leaves records without a failure.
        if cell.outcome is Outcome.ERROR and (cell.control not in undecided or not _completed(run, cell.id))
    }


def _completed(run: RunDir, cell: str) -> bool:
    result = read_result(run, cell)
    return result is not None and result.status == "completed"


def _launch_timing(run: RunDir) -> dict[str, float]:
    """Timing that the newest launch recorded; empty when there is none that can be read."""
    timings = [event.timing for event in read_events(run.events) if isinstance(event, Launched)]
    return timings[-1] if timings else {}


def _stacks(plan: RunPlan) -> dict[str, Any]:
    """Facts about the stacks other than the default one."""
    facts = {name: to_jsonable(stack.facts()) for name, stack in plan.stacks.items()}
    return {"stacks": facts} if facts else {}
