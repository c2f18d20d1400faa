"""The stages of a run, one function each; `run` is the flow of ARCHITECTURE.md read from top to bottom."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness.app.baselines import baseline_problem
from harness.app.boundary import uncaught
from harness.app.judging import judge_all
from harness.app.planning import asked_stacks, expand_for
from harness.app.selection import select
from harness.edge import provenance
from harness.edge.cluster_file import cluster_of
from harness.edge.console import Progress, say
from harness.edge.evidence_files import run_problems
from harness.edge.html_report import render_html
from harness.edge.local_launcher import end_without_agent, run_allocations
from harness.edge.matrix_file import read_matrix
from harness.edge.run_dir import RunDir, append_line, read_events, write_atomic, write_json
from harness.edge.screen import environment_secrets
from harness.edge.slurm_follower import Follower
from harness.edge.slurm_launcher import close, close_refused, unfinished
from harness.edge.slurm_retry import allocations_of, keep_from_starting, retry
from harness.edge.slurm_state import SlurmClient
from harness.edge.slurm_submit import Submitter, jobs_of
from harness.edge.stack_forecast import Forecast, forecasts
from harness.edge.stacks import prepare
from harness.edge.yaml_file import dump
from harness.judge.render_json import render_json
from harness.judge.render_junit import render_junit
from harness.judge.render_markdown import render_markdown
from harness.judge.report_build import report_of
from harness.judge.report_model import Report
from harness.plan.allocations import plan_allocations
from harness.plan.cluster import ClusterProfile
from harness.plan.cost import JobCost, job_costs
from harness.plan.matrix import Matrix, resolved
from harness.words.errors import HarnessError, InfrastructureError, InputError
from harness.words.jsonable import dumps
from harness.words.run_plan import Allocation, Expansion, RunPlan, sealed
from harness.words.secrets import redacted, without_secrets
from harness.words.stack import ReadyStack


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for."""

    matrix: Path
    only: Sequence[str] = ()
    run_parent: Path = Path("reports")
    command: Sequence[str] = ()
    cluster: str | None = None  # --cluster; None: as the matrix says


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What is going to be run, and where."""

    matrix: Matrix
    plan: RunPlan
    cluster: ClusterProfile
    cluster_file: Path | None

    @property
    def jobs(self) -> tuple[JobCost, ...]:
        """What the jobs cost, per array; empty on this machine."""
        if self.cluster.kind == "local":
            return ()
        return job_costs(self.plan.expansion, self.plan.allocations, self.cluster)


def plan_run(request: Request) -> Planned:
    """Matrix file to plan: pure but for reading the files, the clock and the machine's facts."""
    matrix = read_matrix(request.matrix)
    cluster, file = cluster_of(matrix, request.cluster)
    expansion = select(expand_for(matrix, cluster), request.only)
    plan = plan_cells(expansion, name=matrix.name, file=str(request.matrix), command=request.command)
    if cluster.kind == "slurm":
        plan = replace(plan, allocations=plan_allocations(expansion, cluster, matrix.launch))
    plan = replace(
        plan,
        tolerances=matrix.tolerances,
        history=matrix.history,
        peak_tflops={**cluster.peak_tflops, **matrix.peak_tflops},
        cluster=request.cluster,
        max_attempts=matrix.launch.max_attempts,
    )
    return Planned(matrix=matrix, plan=plan, cluster=cluster, cluster_file=file)


def prepare_stacks(planned: Planned, *, once: bool = False, user: str = "") -> Planned:
    """The stacks that the planned cells use, made unless they are there; allocations for those that can be used.

    `once`: no later run will use their worktrees. `user`: who lets go of them.
    """
    matrix = planned.matrix
    try:
        stacks = prepare(asked_stacks(planned.plan.expansion, matrix), say, once=once, user=user)
    except InputError as error:
        lines = {f"stacks.{name}": matrix.lines.get(("stacks", name)) for name in matrix.stacks}
        raise InputError(
            replace(problem, file=matrix.file, line=lines.get(problem.key or "")) for problem in error.problems
        ) from error
    return replace(planned, plan=_in_stacks(planned.plan, stacks))


def foresee_stacks(planned: Planned) -> tuple[Planned, list[Forecast]]:
    """The plan as `prepare_stacks` would make it, as far as it can be known, and what would be made."""
    found = forecasts(asked_stacks(planned.plan.expansion, planned.matrix))
    stacks = {
        item.stack: item.ready or ReadyStack(asked=planned.matrix.stacks[item.stack], error="unknown") for item in found
    }
    return replace(planned, plan=_in_stacks(planned.plan, stacks)), found


def _in_stacks(plan: RunPlan, stacks: dict[str, ReadyStack]) -> RunPlan:
    usable = [item for item in plan.allocations if item.stack not in stacks or stacks[item.stack].usable]
    return replace(plan, stacks=stacks, allocations=tuple(usable))


def plan_cells(expansion: Expansion, *, name: str, file: str, command: Sequence[str]) -> RunPlan:
    """The plan of cells that are already expanded, on this machine."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return RunPlan(
        run_id=f"{name}-{now}-{secrets.token_hex(2)}",
        matrix_name=name,
        matrix_file=file,
        command=list(command),
        expansion=expansion,
        allocations=plan_allocations(expansion),
        provenance=provenance.collect(),
    )


def write_plan(run: RunDir, plan: RunPlan, matrix: Matrix | None) -> None:
    """Everything that is known before the start: plan.json, the resolved matrix, each cell's configuration."""
    if matrix is not None:
        write_atomic(run.matrix, redacted(dump(resolved(matrix))))
    for cell in plan.expansion.cells:
        write_json(run.attempt(cell.id).config, cell.config)
    write_json(run.plan, sealed(without_secrets(plan)))
    for cell in plan.expansion.cells:
        stack = plan.stacks.get(cell.config.stack)
        if stack is not None and not stack.usable:
            end_without_agent(run, cell.id, stack)


def launch(
    run: RunDir, plan: RunPlan, parallel_ranks: int | None = None, attempts: Mapping[str, int] | None = None
) -> None:
    """Run every allocation on this machine, with live progress; returns when all cells have ended.

    `attempts`: numbers of the cells' attempts, 1 where none is named.
    """
    ranks = {cell.id: cell.config.layout.world_size for cell in plan.expansion.cells}
    begin = time.perf_counter()
    listener = _Listener(run)
    listener.progress.start(len(ranks), ranks)
    try:
        run_allocations(run, plan.allocations, plan.stacks, listener, parallel_ranks, attempts)
    finally:
        listener.progress.stop()
    timing = {"launch_s": time.perf_counter() - begin, "import_s": listener.import_s}
    append_line(run.events, {"time": time.time(), "event": "launched", "timing": timing})


def launch_on_slurm(run: RunDir, plan: RunPlan) -> None:
    """Submit the job files that were not submitted yet and follow the jobs until all have ended.

    What a job lost is submitted again at once, while the others go on.
    """
    ranks = {cell.id: cell.config.layout.world_size for cell in plan.expansion.cells}
    begin = time.perf_counter()
    listener = _Listener(run)
    listener.progress.start(len(ranks), ranks)
    try:
        client = SlurmClient()
        submitter = Submitter(run, plan.run_id, client, listener.progress.note)
        follower = Follower(run, listener, client, listener.progress.queue)
        _submit_and_follow(run, unfinished(run, allocations_of(run, plan)), submitter, follower)
        for ended in follower.ended():
            keep_from_starting(plan, ended, client)
            again = retry(run, plan, ended, client)
            close(run, ended)
            _submit_and_follow(run, again, submitter, follower)
        submitter.end_duplicates(allocations_of(run, plan))
    finally:
        listener.progress.stop()
    timing = {"launch_s": time.perf_counter() - begin, "import_s": listener.import_s}
    append_line(run.events, {"time": time.time(), "event": "launched", "timing": timing})


def _submit_and_follow(
    run: RunDir, allocations: Sequence[Allocation], submitter: Submitter, follower: Follower
) -> None:
    ids, refused = submitter.submit_all(jobs_of(allocations))
    close_refused(run, refused)
    follower.add([one for one in allocations if one.name in ids], ids)


def submit_plan(run: RunDir, plan: RunPlan) -> dict[str, str]:
    """Submit the job files that were not submitted yet and follow nothing; Slurm's job id by allocation."""
    ids, refused = Submitter(run, plan.run_id, SlurmClient(), say).submit_all(jobs_of(allocations_of(run, plan)))
    if refused:
        raise InfrastructureError("; ".join(f"{name}: {why}" for name, why in refused.items()))
    return ids


class _Listener:
    """Writes the agents' events into the run's journal, once however often the run is resumed, and shows them."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._known = {dumps(event) for event in read_events(run.events)}
        self.progress = Progress()
        self.import_s = 0.0
        self._begun: dict[str, float] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        if dumps(event) not in self._known:
            append_line(self.run.events, event)
        with suppress(KeyError, TypeError):  # a damaged event moves the display, never a verdict
            self._show(event)

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] == "loaded":
            self.import_s = max(self.import_s, event["import_s"])
        elif event["event"] == "cell_started":
            self._begun[event["cell"]] = event["time"]
            self.progress.cell_started(event["cell"])
        elif event["event"] == "cell_finished":
            seconds = event["time"] - self._begun.get(event["cell"], event["time"])
            self.progress.cell_finished(event["cell"], event["status"], seconds)


def judge(run: RunDir, plan: RunPlan) -> Report:
    """Judge what the run directory holds; needs no training and may be repeated."""
    begin = time.perf_counter()
    timing = _launch_timing(run)
    judged, seen = judge_all(run, plan, today=datetime.now(timezone.utc).date().isoformat())
    wall = timing.get("launch_s", 0.0) + time.perf_counter() - begin
    facts = {**_stacks(plan), **seen.facts()}
    problems = [*run_problems(run, plan), *(one for one in (baseline_problem(run),) if one)]
    report = report_of(plan, judged, timing={**timing, "wall_s": wall}, provenance=facts, problems=problems)
    return without_secrets(report, environment_secrets())


def write_reports(run: RunDir, report: Report) -> list[Path]:
    """report.json, junit.xml, report.md and report.html; their paths. InfrastructureError, after all were tried."""
    renderers: dict[str, Callable[[Report], str]] = {
        "report.json": render_json,
        "junit.xml": render_junit,
        "report.md": render_markdown,
        "report.html": render_html,
    }
    if report.noise:
        renderers["noise.json"] = lambda one: dumps(one.noise, indent=1) + "\n"
    problems = []
    for name, render in renderers.items():
        try:
            write_atomic(run.report(name), render(report))
        except Exception as error:
            problems.append(str(error if isinstance(error, HarnessError) else uncaught(error, run.root)))
    if problems:
        raise InfrastructureError("; ".join(dict.fromkeys(problems)))
    return [run.report(name) for name in renderers if name != "noise.json"]


def _launch_timing(run: RunDir) -> dict[str, float]:
    """As the newest launch noted it; empty when it noted none that can be read."""
    timings = [event.get("timing") for event in read_events(run.events) if event["event"] == "launched"]
    found = timings[-1] if timings else None
    if not isinstance(found, dict) or not all(isinstance(value, (int, float)) for value in found.values()):
        return {}
    return {name: float(value) for name, value in found.items()}


def _stacks(plan: RunPlan) -> dict[str, Any]:
    """What the stacks beside the default one came to."""
    facts = {name: stack.facts() for name, stack in plan.stacks.items()}
    return {"stacks": facts} if facts else {}
