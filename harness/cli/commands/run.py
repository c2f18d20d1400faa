"""`harness run` and `harness resume`: plan, launch, judge, report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.campaign import plugins
from harness.campaign.finalize import RunResult
from harness.campaign.options import RUN_PARENT, RunOptions
from harness.campaign.selection import failed_cells, find_run
from harness.cli.commands.plan import any_to_make, forecast_lines
from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_PASS
from harness.core.run.run_dir import RunDir
from harness.core.text import counted
from harness.infra import screen
from harness.infra.files import expanded
from harness.infra.screen import relative_path

if TYPE_CHECKING:
    from harness.campaign import plan_run
    from harness.core.run.run_plan import RunPlan


def run(matrix: Path, options: RunOptions, command: Sequence[str]) -> RunResult:
    """Plan, launch, judge, report. `command`: the command line that asks for it."""
    from harness.campaign import local_run, plan_run
    from harness.campaign.launch import launcher_for
    from harness.launch.allocations import refuse_above
    from harness.launch.launcher import NO_JOBS
    from harness.launch.local import agent_ahead

    if options.failed:
        again = failed_cells(matrix, options.run_dir or RUN_PARENT)
        options = replace(options, only=[*options.only, *again])
    source = plan_run.read_source(matrix, options)
    launcher = launcher_for(source.cluster)
    if options.detach and not launcher.detached:
        raise InputError(NO_JOBS)
    if launcher.detached and options.maxfail:
        raise InputError(
            Problem(key="--maxfail", message="works on this machine only", hint="`harness cancel` ends jobs")
        )
    parent = (options.run_dir or expanded(source.cluster.run_dir or str(RUN_PARENT))).resolve()
    directory = RunDir(parent / source.run_id)
    with agent_ahead(parent) if source.here and not options.dry_run else nullcontext() as ahead:
        planned = plan_run.plan_run(matrix, options, command, source)
        if options.max_gpu_hours is not None:
            refuse_above(planned.jobs, options.max_gpu_hours, planned.cluster)
        if options.dry_run:
            return _dry_run(planned, directory)
        _announce(planned.plan, directory)
        planned = plan_run.prepare_stacks(planned)
        plan_run.check_arguments(planned)
        if not launcher.detached:
            return local_run.start(directory, planned, options, ahead)
    from harness.campaign import cluster_run  # with Slurm's commands, which a run on this machine does without

    return cluster_run.start(directory, planned, options)


def _announce(plan_: RunPlan, directory: RunDir) -> None:
    """Print the run's id and folder before anything takes time."""
    if not screen.VIEW.quiet:
        cells = counted(len(plan_.expansion.cells), "cell")
        screen.out(f"run {plan_.run_id}: {cells}\n  in {relative_path(directory.root)}")
        broken = sum(cell.config.fault is not None for cell in plan_.expansion.cells)
        for fault in plan_.faults:
            screen.out(f"  fault {fault} in {broken} of them; the history does not record the run")
        sys.stdout.flush()


def _dry_run(planned: plan_run.Planned, directory: RunDir) -> RunResult:
    """Print what would be started; for jobs, also write the run directory as it would be submitted."""
    from harness.campaign import plan_run
    from harness.campaign.launch import launcher_for
    from harness.campaign.plan_text import plan_text
    from harness.launch.local import cores

    planned, stacks = plan_run.foresee_stacks(planned)
    plan_ = planned.plan
    text = plan_text(
        plan_.expansion,
        cores=cores(),
        jobs=planned.jobs,
        stacks=forecast_lines(stacks),
        to_make=any_to_make(stacks),
        width=screen.width(),
    )
    screen.out(screen.wrapped(text))
    launcher = launcher_for(planned.cluster)
    if launcher.detached:
        plan_run.write_run(directory, planned)
    for line in launcher.describe(directory, plan_):
        screen.out(line)
    return RunResult(code=EXIT_PASS)


def resume(name: str, run_parent: Path, *, errors: bool = False, options: RunOptions) -> RunResult:
    """Continue a run whose launcher has ended; nothing is submitted, or judged, twice.

    `errors`: also retry the cells that have ended as ERROR, each as a new attempt.
    """
    from harness.campaign import local_run
    from harness.campaign.launch import launcher_of
    from harness.runs.evidence_files import read_plan

    directory = find_run(name, run_parent)
    plan_ = read_plan(directory)
    plugins.require(plan_)
    if not launcher_of(directory).detached:
        return local_run.resume(directory, plan_, options, errors=errors)
    from harness.campaign import cluster_run

    return cluster_run.resume(directory, plan_, options, errors=errors)
