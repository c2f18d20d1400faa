"""From a matrix file to the plan of a run: cells, launcher and stacks; written before the start."""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import harness
from harness.campaign import plugins
from harness.campaign.launch import launcher_for
from harness.campaign.options import PlanOptions
from harness.campaign.planning import expand_for, requested_stacks
from harness.campaign.selection import select
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.run.provenance import PlanProvenance
from harness.core.run.run_dir import RunDir, write_atomic, write_json
from harness.core.run.run_plan import Expansion, RunPlan, sealed_text
from harness.core.secrets import redacted, without_secrets
from harness.core.stack import DEFAULT, ReadyStack, Stack
from harness.infra import git
from harness.infra.files import checkout, matrix_word
from harness.infra.screen import environment_secrets
from harness.inputs.cluster_file import cluster_of
from harness.inputs.matrix_file import read_overridden
from harness.inputs.since import SUFFIX
from harness.inputs.yaml_file import dump
from harness.launch.allocations import JobCost, job_costs, plan_allocations
from harness.launch.local import end_without_agent
from harness.launch.stacks.interpreters import require_torch
from harness.launch.stacks.node_code import argument_problems
from harness.launch.stacks.prepare import Forecast, forecasts, prepare
from harness.matrix.cluster import ClusterProfile
from harness.matrix.load import Matrix, resolved
from harness.reporting.console import say
from harness.upstreams.table import UPSTREAM_TRAINERS

_PROVENANCE_PACKAGES = ("megatron-core", "torch", "transformer-engine", "numpy", "submitit")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A planned run with its matrix and cluster."""

    matrix: Matrix
    plan: RunPlan
    cluster: ClusterProfile
    cluster_file: Path | None

    @property
    def jobs(self) -> tuple[JobCost, ...]:
        """Cost of the jobs per array; empty on this machine."""
        return job_costs(self.plan.expansion, self.plan.allocations, self.cluster)


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a plan is made of."""

    run_id: str  # of the run that will be planned
    matrix: Matrix
    cluster: ClusterProfile
    cluster_file: Path | None

    @property
    def here(self) -> bool:
        """Whether all cells run on this machine, in the environment of the harness."""
        return self.cluster.kind == "local" and "stack" not in self.matrix.axes.names


def new_run_id(name: str) -> str:
    """Return a new run id: the time in UTC and four random hex digits."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return f"{name}-{now}-{secrets.token_hex(2)}"


def read_source(file: Path, options: PlanOptions) -> Source:
    """Read the matrix file with its overrides and the cluster profile that it runs under."""
    matrix = read_overridden(file, options.settings, options.since)
    cluster, cluster_file = cluster_of(matrix, options.cluster)
    return Source(run_id=new_run_id(matrix.name), matrix=matrix, cluster=cluster, cluster_file=cluster_file)


def plan_run(file: Path, options: PlanOptions, command: Sequence[str] = (), source: Source | None = None) -> Planned:
    """Return the plan of a matrix file; reads only files, the clock and facts of the machine.

    `command`: the command line that asks for it. `source`: if it is read.
    """
    source = source or read_source(file, options)
    matrix, cluster = source.matrix, source.cluster
    expansion = select(expand_for(matrix, cluster), options.only, options.expression)
    if options.fault is not None:
        from harness.faults.catalogue import with_fault  # the catalogue, which few runs need

        expansion = with_fault(expansion, options.fault)
    plan = plan_cells(expansion, name=matrix.name, file=matrix_word(file), command=command, run_id=source.run_id)
    chosen = [*options.only, *filter(None, [options.expression])]
    plan = replace(
        plan,
        allocations=plan_allocations(expansion, cluster, matrix.launch),
        tolerances=matrix.tolerances,
        history=matrix.history,
        peak_tflops={**cluster.peak_tflops, **matrix.peak_tflops},
        cluster=options.cluster,
        settings=list(options.settings),
        origin=matrix.origin,
        since=options.since,
        earlier_stacks=[name for name in matrix.stacks if name.endswith(SUFFIX)] if options.since is not None else [],
        max_attempts=matrix.launch.max_attempts,
        provenance=replace(plan.provenance, chosen=chosen),
    )
    return Planned(matrix=matrix, plan=plan, cluster=cluster, cluster_file=source.cluster_file)


def prepare_stacks(planned: Planned, *, once: bool = False, user: str = "") -> Planned:
    """Build the stacks of the planned cells unless they exist; allocations of unusable stacks are dropped.

    `once`, `user`: see `prepare`.
    """
    matrix, cluster = planned.matrix, planned.cluster
    cells = planned.plan.expansion.cells
    if any(cell.config.stack not in matrix.stacks for cell in cells) and not (cluster.python or cluster.container):
        require_torch()
    try:
        stacks = prepare(requested_stacks(planned.plan.expansion, matrix), say, once=once, user=user)
    except InputError as error:
        lines = {f"stacks.{name}": matrix.lines.get(("stacks", name)) for name in matrix.stacks}
        raise InputError(
            replace(problem, file=matrix.file, line=lines.get(problem.key or "")) for problem in error.problems
        ) from error
    return replace(planned, plan=in_stacks(planned.plan, stacks))


def check_arguments(planned: Planned) -> None:
    """Raise InputError when a stack's trainer does not accept the arguments of a cell.

    It is asked in its environment.
    """
    problems: dict[str, Problem] = {}
    asked = {name for name, trainer in UPSTREAM_TRAINERS.items() if trainer.arguments}
    cells = [cell for cell in planned.plan.expansion.cells if cell.config.trainer in asked]
    with_arguments = {cell.id: cell for cell in cells if cell.config.args.given}
    asked_of = {cell.id: (cell.config.stack, cell.config.trainer) for cell in with_arguments.values()}
    for name, trainer in dict.fromkeys(asked_of.values()):
        stack = planned.plan.stacks.get(name) or _default_stack(planned.cluster)
        if stack is None or not stack.usable or stack.requested.container:
            continue  # a cell without a usable stack is ERROR; in a container, it finds out itself
        try:
            of_both = {cell: with_arguments[cell].config for cell, both in asked_of.items() if both == (name, trainer)}
            messages = argument_problems(stack, trainer, of_both)
        except InfrastructureError as error:
            say(f"arguments for stack {name} are not checked before cells start: {error}")
            continue
        for cell, message in messages.items():  # once for all cells with the same problem
            problem = Problem(
                message=f"cell {cell} of stack {name}: {message}",
                file=planned.matrix.file,
                line=with_arguments[cell].line,
                key="matrix",
                hint="arguments come from `args`, `profiles` and axes like `args.clip-grad`",
            )
            problems.setdefault(f"{name} {message}", problem)
    if problems:
        raise InputError(problems.values())


def _default_stack(cluster: ClusterProfile) -> ReadyStack | None:
    """Return the environment of agents of cells without a stack; None if it is a container."""
    python = cluster.python or sys.executable
    return None if cluster.container else ReadyStack(requested=Stack(name=DEFAULT), python=python)


def foresee_stacks(planned: Planned) -> tuple[Planned, list[Forecast]]:
    """Return the plan as `prepare_stacks` would make it, as far as known, and the forecast of each stack."""
    foreseen = forecasts(requested_stacks(planned.plan.expansion, planned.matrix))
    stacks = {
        forecast.stack: forecast.ready or ReadyStack(requested=planned.matrix.stacks[forecast.stack], error="unknown")
        for forecast in foreseen
    }
    return replace(planned, plan=in_stacks(planned.plan, stacks)), foreseen


def in_stacks(plan: RunPlan, stacks: Mapping[str, ReadyStack]) -> RunPlan:
    """Return the plan with its stacks; allocations of those that cannot be used are dropped."""
    usable = [
        allocation
        for allocation in plan.allocations
        if allocation.stack not in stacks or stacks[allocation.stack].usable
    ]
    return replace(plan, stacks=dict(stacks), allocations=tuple(usable))


def plan_cells(expansion: Expansion, *, name: str, file: str, command: Sequence[str], run_id: str = "") -> RunPlan:
    """Return the plan of cells that are already expanded, on this machine. `run_id`: empty for a new one."""
    return RunPlan(
        run_id=run_id or new_run_id(name),
        matrix_name=name,
        matrix_file=file,
        command=list(command),
        expansion=expansion,
        allocations=plan_allocations(expansion),
        provenance=collect_provenance(),
    )


def write_run(run: RunDir, planned: Planned) -> None:
    """Write the run directory of a matrix before the start: what the launcher needs, the resolved matrix, the plan."""
    _write_plugins(run)
    launcher = launcher_for(planned.cluster)
    launcher.write(run, planned.plan, planned.matrix.launch, planned.cluster, planned.cluster_file)
    write_atomic(run.matrix, redacted(dump(resolved(planned.matrix)), environment_secrets()))
    _write_cells(run, planned.plan)


def write_plan(run: RunDir, plan: RunPlan) -> None:
    """Write the run directory of cells that no matrix has, on this machine, before the start."""
    _write_plugins(run)
    _write_cells(run, plan)


def _write_plugins(run: RunDir) -> None:
    """Name the plug-ins that agents must load; first, since launchers copy their code."""
    if of_nodes := [plugin for plugin in plugins.active() if plugin.of_nodes]:
        write_json(run.plugins, of_nodes)


def _write_cells(run: RunDir, plan: RunPlan) -> None:
    """Write each cell's configuration, then plan.json, which completes the directory."""
    unusable = {name: stack for name, stack in plan.stacks.items() if not stack.usable}
    for cell in plan.expansion.cells:
        write_json(run.attempt(cell.id).config, cell.config)
    write_atomic(run.plan, sealed_text(without_secrets(plan, environment_secrets())))
    for cell in plan.expansion.cells:
        if cell.config.stack in unusable:
            end_without_agent(run, cell.id, unusable[cell.config.stack])


def collect_provenance() -> PlanProvenance:
    """Collect what a report says about the launcher: software, machine and the time of the start."""
    return PlanProvenance(
        harness=harness.__version__,
        harness_commit=_harness_commit(Path(harness.__file__).parent) if checkout() else "unknown",
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=platform.node(),
        system=platform.platform(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        interpreter=sys.executable,
        packages={name: _package_version(name) for name in _PROVENANCE_PACKAGES},
        plugins=plugins.versions(),
    )


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _harness_commit(folder: Path) -> str:
    """Return the commit of the harness's checkout, with "+changes" when files differ; "unknown" outside a checkout."""
    try:
        head = git.run(folder, "rev-parse", "--short=12", "HEAD", timeout_s=10)
        dirty = git.run(folder, "status", "--porcelain", ".", timeout_s=10)
    except InfrastructureError:  # no git on this machine, or the file system is too slow
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
