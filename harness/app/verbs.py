"""What each verb does, in terms of the stages. Every function returns an exit code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.app.ending import Finish, judge_and_report, shown
from harness.edge import screen
from harness.edge.run_dir import RunDir
from harness.edge.text_file import expanded, is_file
from harness.words.errors import InputError, Problem
from harness.words.outcomes import EXIT_INTERRUPTED, EXIT_PASS, EXIT_UNDECIDED

if TYPE_CHECKING:
    from harness.app import stages
    from harness.edge.stack_forecast import Forecast
    from harness.words.run_plan import RunPlan

_NO_DETACH = Problem(
    key="--detach",
    message="there are no jobs on this machine: the cells would end with the launcher",
    hint="name a Slurm profile with --cluster, or run it under tmux or nohup",
)


def run(
    matrix_file: Path,
    only: Sequence[str],
    run_parent: Path | None,
    command: Sequence[str],
    *,
    dry_run: bool,
    cluster: str | None = None,
    max_gpu_hours: float | None = None,
    detach: bool = False,
    finish: Finish,
) -> int:
    """Plan, launch, judge, report. `run_parent` None: as the cluster profile says, else reports.

    `detach`: only submit; `resume` follows and judges.
    """
    from harness.app import local_run, stages
    from harness.plan.cost import refuse_above

    request = stages.Request(matrix=matrix_file, only=only, command=command, cluster=cluster)
    planned = stages.plan_run(request)
    plan_ = planned.plan
    if detach and planned.cluster.kind == "local":
        raise InputError(_NO_DETACH)
    if max_gpu_hours is not None:
        refuse_above(planned.jobs, max_gpu_hours, planned.cluster)
    parent = run_parent or expanded(planned.cluster.run_dir or "reports")
    directory = RunDir(parent.resolve() / plan_.run_id)
    if dry_run:
        return _dry_run(planned, directory)
    planned = stages.prepare_stacks(planned)
    plan_ = planned.plan
    if planned.cluster.kind == "slurm":
        write_job_files(planned, directory)
        if detach:
            return _detach(directory, plan_)
        return _follow(directory, plan_, finish)
    return local_run.start(directory, plan_, planned.matrix, finish)


def _follow(directory: RunDir, plan_: RunPlan, finish: Finish, *, errors: bool = False) -> int:
    """Submit what is not submitted yet, follow the jobs, report. Ctrl-C leaves the jobs running."""
    from harness.app import stages
    from harness.edge.run_lock import only_launcher

    try:
        with only_launcher(directory):
            if errors:
                _run_errors_again(directory, plan_)
            stages.launch_on_slurm(directory, plan_)
    except KeyboardInterrupt:
        screen.out(f"detached, the jobs go on\n{_next_commands(directory)}")
        return EXIT_INTERRUPTED
    return judge_and_report(directory, plan_, finish)


def _detach(directory: RunDir, plan_: RunPlan) -> int:
    """Submit and leave. Lost cells run again only while a launcher follows."""
    from harness.app import stages
    from harness.edge.run_lock import only_launcher

    with only_launcher(directory):
        ids = stages.submit_plan(directory, plan_)
    screen.out(f"{plan_.run_id}: {len(ids)} jobs are with Slurm\n{_next_commands(directory)}")
    return EXIT_PASS


def _next_commands(directory: RunDir) -> str:
    name = shlex.quote(shown(directory.root))
    return (
        f"  follow and judge: harness resume {name}\n"
        f"  how far it is:    harness status {name}\n"
        f"  end the jobs:     harness cancel {name}"
    )


def _dry_run(planned: stages.Planned, directory: RunDir) -> int:
    """On this machine: what would be started. On a cluster: writes the run directory as it would be submitted."""
    from harness.app import stages
    from harness.edge.expected_start import expected_start
    from harness.edge.local_launcher import agent_command, cores
    from harness.plan.plan_text import plan_text

    planned, stacks = stages.foresee_stacks(planned)
    plan_ = planned.plan
    screen.out(plan_text(plan_.expansion, cores=cores(), jobs=planned.jobs, stacks=_lines_of(stacks)))
    if planned.cluster.kind == "local":
        for allocation in plan_.allocations:
            command = agent_command(directory, allocation.name, plan_.stacks.get(allocation.stack))
            screen.out(f"{allocation.name}: {shlex.join(command)}")
        return EXIT_PASS
    screen.out("Nothing is submitted. Job files:")
    for path in write_job_files(planned, directory):
        start = expected_start(path)
        screen.out(f"  {shown(path)}" + (f"  (Slurm would start it at {start})" if start else ""))
    return EXIT_PASS


def _lines_of(stacks: Sequence[Forecast]) -> list[str]:
    return [line for stack in stacks for line in stack.lines()]


def write_job_files(planned: stages.Planned, directory: RunDir) -> list[Path]:
    """Everything that a run on a cluster needs, its job files included; their paths."""
    from harness.app import stages
    from harness.edge.cluster_file import template_of
    from harness.edge.submissions import write_submissions

    template = template_of(planned.cluster, planned.cluster_file)
    files = write_submissions(directory, planned.plan, planned.cluster, template, planned.matrix.launch)
    stages.write_plan(directory, planned.plan, planned.matrix)
    return files


def plan(matrix_file: Path, *, as_json: bool, all_rows: bool, cluster: str | None = None) -> int:
    """Cells, rejected combinations, cost."""
    from harness.app.planning import asked_stacks, expand_for
    from harness.edge.cluster_file import cluster_of
    from harness.edge.local_launcher import cores
    from harness.edge.matrix_file import read_matrix
    from harness.edge.stack_forecast import forecasts
    from harness.plan.allocations import plan_allocations
    from harness.plan.cost import job_costs
    from harness.plan.plan_text import plan_json, plan_text

    matrix = read_matrix(matrix_file)
    profile, _ = cluster_of(matrix, cluster)
    expansion = expand_for(matrix, profile)
    slurm = profile.kind == "slurm"
    allocations = plan_allocations(expansion, profile, matrix.launch) if slurm else None
    jobs = job_costs(expansion, allocations, profile) if allocations else ()
    stacks = forecasts(asked_stacks(expansion, matrix))
    if as_json:
        screen.data(plan_json(expansion, cores=cores(), allocations=allocations, jobs=jobs, stacks=stacks))
    else:
        screen.out(plan_text(expansion, all_rows=all_rows, cores=cores(), jobs=jobs, stacks=_lines_of(stacks)))
    return EXIT_PASS


def verify(files: Sequence[Path]) -> int:
    """Check every file with the cluster profile it names; all problems of all files are told."""
    from harness.app.planning import expand_for
    from harness.edge.cluster_file import cluster_of
    from harness.edge.matrix_file import read_matrix

    problems: list[Problem] = []
    for file in files:
        try:
            matrix = read_matrix(file)
            expansion = expand_for(matrix, cluster_of(matrix)[0])
            screen.out(f"{file}: ok, {len(expansion.cells)} cells, {len(expansion.rejected)} rejected")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return EXIT_PASS


def schema() -> int:
    """The JSON Schema of matrix files."""
    import json

    from harness.plan.json_schema import json_schema

    screen.data(json.dumps(json_schema(), indent=2))
    return EXIT_PASS


def report(name: str, run_parent: Path, finish: Finish) -> int:
    """Judge a run directory again and rewrite its reports."""
    from harness.edge.evidence_files import read_plan

    directory = find_run(name, run_parent)
    return judge_and_report(directory, read_plan(directory), finish)


def resume(name: str, run_parent: Path, *, errors: bool = False, finish: Finish) -> int:
    """Go on with a run whose launcher ended; nothing is submitted, or judged, twice.

    `errors`: cells that ended as ERROR by then run once more, as a new attempt.
    """
    from harness.app import local_run
    from harness.edge.evidence_files import read_plan

    directory = find_run(name, run_parent)
    plan_ = read_plan(directory)
    if not (directory.root / "cluster.json").exists():
        return local_run.resume(directory, plan_, finish, errors=errors)
    return _follow(directory, plan_, finish, errors=errors)


def _run_errors_again(directory: RunDir, plan_: RunPlan) -> None:
    from harness.app import stages
    from harness.edge.slurm_retry import again
    from harness.words.outcomes import Outcome

    cells = [cell for cell in stages.judge(directory, plan_).cells if cell.outcome is Outcome.ERROR]
    wanted = {cell.id for cell in cells if cell.failure or not cell.ranks}  # not those that only lack their reference
    directory.cancelled.unlink(missing_ok=True)  # the user asks for jobs again
    made = again(directory, plan_, wanted)
    screen.out(f"{sum(len(one.cells) for one in made)} cells that ended as ERROR run again")


def status(name: str, run_parent: Path) -> int:
    """How far a run is: its cells by what became of them, its jobs by what Slurm says."""
    from harness.edge.evidence_files import read_plan
    from harness.edge.run_status import status_text

    directory = find_run(name, run_parent)
    screen.out(status_text(directory, read_plan(directory)))
    return EXIT_PASS


def cancel(name: str, run_parent: Path) -> int:
    """End the jobs of a run; what its cells have written stays and can be judged."""
    from harness.edge.evidence_files import read_plan
    from harness.edge.slurm_cancel import cancel_run
    from harness.edge.slurm_retry import allocations_of
    from harness.edge.slurm_state import SlurmClient

    directory = find_run(name, run_parent)
    _need_cluster(directory)
    plan_ = read_plan(directory)
    done = cancel_run(directory, plan_.run_id, allocations_of(directory, plan_), SlurmClient())
    screen.out(f"jobs: {done.text}\n  judge what they left: harness report {shlex.quote(shown(directory.root))}")
    return EXIT_UNDECIDED if done.left else EXIT_PASS


def logs(name: str, run_parent: Path, cell: str | None, rank: int | None) -> int:
    """Where logs lie, and their ends: of the run's jobs and agents, or of the ranks of cells."""
    from harness.app.selection import matching
    from harness.edge.evidence_files import read_plan
    from harness.edge.run_logs import job_logs_text, logs_of

    directory = find_run(name, run_parent)
    if cell is None:
        if rank is not None:
            raise InputError(Problem(key="--rank", message="of which cell?", hint="harness logs RUN CELL --rank N"))
        screen.out(job_logs_text(directory))
        return EXIT_PASS
    for piece in logs_of(directory, matching(read_plan(directory).expansion, cell), rank):
        screen.out(piece, end="")
    return EXIT_PASS


def doctor(name: str, run_parent: Path | None) -> int:
    """Whether this machine can run cells under a profile: a line per check; 3 when one fails."""
    from harness.edge.cluster_file import read_cluster
    from harness.edge.doctor import probe
    from harness.edge.doctor_checks import checks
    from harness.edge.doctor_words import FAIL, line

    profile, _ = read_cluster(name, Path(), Path(), Problem(message="", key="--cluster"))
    folder = run_parent or Path(profile.run_dir or "reports")
    found = checks(profile, probe(profile, expanded(str(folder)).resolve()))
    screen.out("\n".join(map(line, found)))
    return EXIT_UNDECIDED if any(check.level == FAIL for check in found) else EXIT_PASS


def _need_cluster(directory: RunDir) -> None:
    if not (directory.root / "cluster.json").exists():
        raise InputError(Problem(message="ran on this machine, not on a cluster", file=str(directory.root)))


def _changed(folder: Path) -> float:
    """When a run directory was last changed; 0 of one that has just been removed."""
    with suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def find_run(name: str, run_parent: Path) -> RunDir:
    """A run directory by path, by id under the parent folder, or 'latest'. InputError when there is none."""
    known = sorted((path.parent for path in run_parent.glob("*/plan.json")), key=_changed)
    if name == "latest" and known:
        return RunDir(known[-1].resolve())
    for candidate in (Path(name), run_parent / name):
        if is_file(candidate / "plan.json"):
            return RunDir(candidate.resolve())
    listed = ", ".join(path.name for path in known[-3:]) or f"none under {run_parent}"
    raise InputError(Problem(message=f"no run {name!r}", allowed=f"a path, 'latest', or an id: {listed}"))


def selftest(only: Sequence[str], run_parent: Path, *, list_only: bool) -> int:
    """Inject the catalogued faults and demand that each is caught at its place."""
    from harness.app import selftest as selftest_

    if list_only:
        screen.out(selftest_.list_text())
        return EXIT_PASS
    return selftest_.run(list(only) or None, run_parent)
