"""A round of a bisection: the chosen cells at some points, run side by side in one run and judged from its files."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.app.bisect.nested import Pins
from harness.app.pipeline import judge_run, launch, plan_run, reports
from harness.core.cell.config import cell_id
from harness.core.outcomes import Outcome
from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import Expansion, PlannedCell, RunPlan
from harness.core.serialization import dumps, loads
from harness.core.stack import DEFAULT, Stack, content_of
from harness.infra.console import say
from harness.infra.inputs.yaml_file import dump
from harness.infra.launcher import Launcher
from harness.infra.launchers import launcher_for
from harness.infra.runs import verdict_cache
from harness.infra.runs.evidence_files import read_plan, read_result
from harness.infra.runs.lock import only_launcher
from harness.infra.runs.verdict_cache import KeptVerdict, VerdictKey
from harness.infra.screen import relative_path
from harness.infra.stacks.prepare import torch_version
from harness.infra.stacks.worktree_users import release
from harness.judge.bisect.result import JudgedCell, Point, judged, state_of
from harness.plan.jobs.allocations import plan_allocations
from harness.plan.jobs.cluster import ClusterProfile
from harness.plan.matrix.load import Matrix, resolved
from harness.plan.stacks.bisection_cells import Subject, moved, named_at, plain_name


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where and with what the points are judged."""

    matrix: Matrix  # for the bisection: see plan/stacks/bisection_cells.py
    cluster: ClusterProfile
    cluster_file: Path | None
    cluster_asked: str | None
    subject: Subject
    chosen: tuple[PlannedCell, ...]
    cells: tuple[PlannedCell, ...]  # the chosen ones and their references
    folder: Path  # of this bisection
    fresh: bool  # whether what is kept from earlier ones does not count
    command: Sequence[str]
    pins: Pins | None  # what the subject's commits pin and the stacks hold
    at: Callable[[Stack, str], Stack]  # a stack with the subject, and what it pins, at a point
    label: Callable[[str], str]  # a point as part of a stack's name
    code: Callable[[Iterable[str]], Mapping[str, str]]  # what the verdicts on points are kept by

    @property
    def stacks(self) -> dict[str, Stack]:
        """The stacks of the chosen cells, at whatever point the matrix has them."""
        return {cell.config.stack: self.matrix.stacks[cell.config.stack] for cell in self.chosen}

    @property
    def launcher(self) -> Launcher:
        return launcher_for(self.cluster)


def judge_points(bench: Bench, points: Sequence[str]) -> dict[str, Point]:
    """The points judged: from what is kept as far as it goes, the others in one run."""
    keys = _keys(bench, points)
    known = {point: None if bench.fresh else _kept(bench, point, keys[point]) for point in points}
    wanted = [point for point in points if known[point] is None]
    found = {point: kept for point, kept in known.items() if kept is not None}
    if wanted:
        found |= _run(bench, wanted, keys)
    return {point: found[point] for point in points}


def _keys(bench: Bench, points: Sequence[str]) -> dict[str, dict[str, VerdictKey]]:
    """For each point the keys of its chosen cells, by their ids in the matrix."""
    code = bench.code(points)
    gpu = "gpu" if Path("/dev/nvidiactl").exists() else "cpu"
    where = dumps(bench.cluster) if bench.launcher.detached else gpu
    judged_by = dumps([bench.matrix.tolerances, torch_version()])
    keys: dict[str, dict[str, VerdictKey]] = {point: {} for point in points}
    for cell in bench.chosen:
        stack = content_of(bench.subject.at(bench.matrix.stacks[cell.config.stack], ""))
        plain = cell_id(replace(cell.config, stack=DEFAULT))
        what = f"{plain} {dumps([cell.config.canaries, cell.config.deadline_s])} {judged_by}"
        for point in points:
            keys[point][cell.id] = VerdictKey(
                code=code[point], stack=stack, cell=what, where=where, harness=verdict_cache.harness_version()
            )
    return keys


def _kept(bench: Bench, point: str, keys: Mapping[str, VerdictKey]) -> Point | None:
    verdicts = {name: verdict_cache.read(key) for name, key in keys.items()}
    whole = [verdict for verdict in verdicts.values() if verdict is not None]
    if len(whole) < len(verdicts):
        return None
    names = {cell.id: plain_name(cell) for cell in bench.chosen}
    cells = {verdict.key.cell: replace(verdict.cell, name=names[name]) for name, verdict in verdicts.items() if verdict}
    stack = next(iter(_stacks_at(bench, point).values())).name
    return _point(point, tuple(cells.values()), whole[0].run, stack, kept=True)


def _run(bench: Bench, points: Sequence[str], keys: Mapping[str, dict[str, VerdictKey]]) -> dict[str, Point]:
    """The points in one new run. What it is doing is noted, so that another process can go on with it."""
    planned = _planned(bench, points)
    directory = RunDir(bench.folder / "runs" / planned.plan.run_id)
    begin = time.perf_counter()
    planned = plan_run.prepare_stacks(planned, once=True, user=str(bench.folder))
    plan_run.write_run(directory, planned)
    write_json(_note(bench), {"run": str(directory.root), "points": list(points)})
    _launch(bench, directory, planned.plan)
    found = _harvest(bench, directory, planned.plan, points, keys)
    _note(bench).unlink()
    release(str(bench.folder), (bench.subject.name, *([bench.pins.subject.name] if bench.pins else [])))
    seconds = (time.perf_counter() - begin) / len(points)
    return {point: replace(judged, seconds=seconds) for point, judged in found.items()}


def finish_interrupted(bench: Bench) -> None:
    """Keep the verdicts of a round whose launcher ended: all of it on a cluster, what has ended on this machine."""
    if not _note(bench).exists():
        return
    note = loads(text_of(_note(bench)))
    directory, points = RunDir(Path(note["run"])), note["points"]
    plan = read_plan(directory)
    say(f"going on with {relative_path(directory.root)}")
    if bench.launcher.detached:
        _launch(bench, directory, plan)
    _harvest(bench, directory, plan, [point for point in points if _has_ended(bench, directory, point)])
    _note(bench).unlink()


def _note(bench: Bench) -> Path:
    return bench.folder / "running.json"


def _has_ended(bench: Bench, directory: RunDir, point: str) -> bool:
    return all(read_result(directory, cell.id) is not None for cell in _cells_at(bench, point).values())


def _planned(bench: Bench, points: Sequence[str]) -> plan_run.Planned:
    """One run with a stack per point; what its report calls the command for a cell needs that point's matrix only."""
    cells: dict[str, PlannedCell] = {}
    stacks: dict[str, Stack] = {}
    for point in points:
        file = matrix_at(bench, point)
        names = ids_in_matrix_at(bench, point)
        for old, cell in _cells_at(bench, point).items():
            command = shlex.join(["harness", "run", relative_path(file), *_cluster_option(bench), "--only", names[old]])
            cells.setdefault(cell.id, replace(cell, reproduce=command))
        stacks |= {stack.name: stack for stack in _stacks_at(bench, point).values()}
    matrix = replace(bench.matrix, stacks=stacks)
    expansion = Expansion(cells=tuple(cells.values()), rejected=())
    plan = plan_run.plan_cells(expansion, name=matrix.name, file=matrix.file, command=bench.command)
    plan = replace(
        plan,
        allocations=plan_allocations(expansion, bench.cluster, matrix.launch),
        tolerances=matrix.tolerances,
        cluster=bench.cluster_asked,
        max_attempts=matrix.launch.max_attempts,
    )
    return plan_run.Planned(matrix=matrix, plan=plan, cluster=bench.cluster, cluster_file=bench.cluster_file)


def matrix_at(bench: Bench, point: str) -> Path:
    """A matrix file with the subject at a point: the bisection's matrix but for that. Written unless it is there."""
    path = bench.folder / "points" / f"{bench.label(point)}.yaml"
    if not path.exists():
        stacks = {
            name: bench.at(stack, point) if name in bench.stacks else stack
            for name, stack in bench.matrix.stacks.items()
        }
        write_atomic(path, dump(resolved(replace(bench.matrix, stacks=stacks))))
    return path


def ids_in_matrix_at(bench: Bench, point: str) -> dict[str, str]:
    """The ids that cells have in the matrix file of a point, by those in the bisection's matrix.

    The names of the stacks are the same in both; what the stacks hold is not.
    """
    return {old: cell.id for old, cell in moved(bench.cells, _moved_stacks(bench, point)).items()}


def _cluster_option(bench: Bench) -> list[str]:
    return ["--cluster", bench.cluster_asked] if bench.cluster_asked else []


def _moved_stacks(bench: Bench, point: str) -> dict[str, Stack]:
    return {name: bench.at(stack, point) for name, stack in bench.stacks.items()}


def _stacks_at(bench: Bench, point: str) -> dict[str, Stack]:
    return named_at(_moved_stacks(bench, point), bench.subject, bench.label(point))


def _cells_at(bench: Bench, point: str) -> dict[str, PlannedCell]:
    return moved(bench.cells, _stacks_at(bench, point))


def _launch(bench: Bench, directory: RunDir, plan: RunPlan) -> None:
    with only_launcher(directory):
        launch.launch(directory, plan, bench.launcher)


def _harvest(
    bench: Bench,
    directory: RunDir,
    plan: RunPlan,
    points: Sequence[str],
    keys: Mapping[str, dict[str, VerdictKey]] | None = None,
) -> dict[str, Point]:
    """The verdicts on points of a run that has ended; those that are decided are kept."""
    report = judge_run.judge(directory, plan)
    reports.write_reports(directory, report)
    keys = keys or _keys(bench, points)
    names = {cell.id: plain_name(cell) for cell in bench.chosen}
    found = {}
    for point in points:
        new, cells = _cells_at(bench, point), {}
        for old, key in keys[point].items():
            cell = judged(report, new[old].id, names[old])
            cells[cell.id] = cell
            if cell.outcome is not Outcome.ERROR:
                verdict_cache.keep(KeptVerdict(key=key, cell=cell, run=str(directory.root)))
        stack = next(iter(new.values())).config.stack
        found[point] = _point(point, tuple(cells.values()), str(directory.root), stack)
    return found


def _point(name: str, cells: tuple[JudgedCell, ...], run: str, stack: str, *, kept: bool = False) -> Point:
    state, reason = state_of(cells)
    return Point(name=name, state=state, stack=stack, cells=cells, run=run, reason=reason, kept=kept)
