"""A round of a bisection: the chosen cells at several points, run side by side in one run and judged.

Verdicts on cells are cached: one file each, written atomically. The key is everything that a verdict depends on; the
file holds it as text. Undecided verdicts are not kept.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import harness
from harness.campaign import campaign, judging, plan_run, reports
from harness.campaign.launch import launcher_for
from harness.core.cell.identity import cell_id
from harness.core.outcomes import Outcome
from harness.core.run.report import Report
from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.core.serialization import dumps, from_jsonable, loads
from harness.core.stack import DEFAULT, Stack, content_of
from harness.infra.screen import relative_path
from harness.inputs.yaml_file import dump
from harness.launch.allocations import plan_allocations
from harness.launch.launcher import Launcher
from harness.launch.stacks.artifact_store import folder
from harness.launch.stacks.checkout import release_worktrees
from harness.launch.stacks.prepare import torch_version
from harness.matrix.cluster import ClusterProfile
from harness.matrix.load import Matrix, resolved
from harness.matrix.stacks.bisection_cells import Subject, moved, named_at, plain_name
from harness.reporting.bisection import JudgedCell, Point, judged, state_of
from harness.reporting.console import say
from harness.runs.evidence_files import read_plan, read_result
from harness.triage.bisect.sources import Pins

VERDICT_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class BisectContext:
    """Everything that is needed to judge points."""

    matrix: Matrix  # for the bisection: see matrix/stacks/bisection_cells.py
    cluster: ClusterProfile
    cluster_file: Path | None
    requested_cluster: str | None
    subject: Subject
    chosen: tuple[PlannedCell, ...]
    cells: tuple[PlannedCell, ...]  # the chosen ones and their controls
    folder: Path  # of this bisection
    fresh: bool  # ignore verdicts kept from earlier bisections
    command: Sequence[str]
    pins: Pins | None  # of the subject's commits, with --nested
    at: Callable[[Stack, str], Stack]  # a stack with the subject and its pins at a point
    label: Callable[[str], str]  # a point as part of a stack's name
    code: Callable[[Iterable[str]], Mapping[str, str]]  # point -> its code, part of the key of a kept verdict

    @property
    def stacks(self) -> dict[str, Stack]:
        """Return the stacks of the chosen cells, as the matrix has them."""
        return {cell.config.stack: self.matrix.stacks[cell.config.stack] for cell in self.chosen}

    @property
    def launcher(self) -> Launcher:
        """Return the launcher of the bisection's cluster."""
        return launcher_for(self.cluster)


def judge_points(context: BisectContext, points: Sequence[str]) -> dict[str, Point]:
    """Judge points: kept verdicts are reused, the other points are judged in one run."""
    keys = _keys(context, points)
    known = {point: None if context.fresh else _kept(context, point, keys[point]) for point in points}
    wanted = [point for point in points if known[point] is None]
    judged_points = {point: kept for point, kept in known.items() if kept is not None}
    if wanted:
        judged_points |= _run(context, wanted, keys)
    return {point: judged_points[point] for point in points}


def _keys(context: BisectContext, points: Sequence[str]) -> dict[str, dict[str, VerdictKey]]:
    """Return point -> id of a chosen cell in the matrix -> key."""
    code = context.code(points)
    gpu = "gpu" if Path("/dev/nvidiactl").exists() else "cpu"
    where = dumps(context.cluster) if context.launcher.detached else gpu
    judged_by = dumps([context.matrix.tolerances, torch_version()])
    keys: dict[str, dict[str, VerdictKey]] = {point: {} for point in points}
    for cell in context.chosen:
        stack = content_of(context.subject.at(context.matrix.stacks[cell.config.stack], ""))
        plain = cell_id(replace(cell.config, stack=DEFAULT))
        what = f"{plain} {dumps([cell.config.canaries, cell.config.deadline_s])} {judged_by}"
        for point in points:
            keys[point][cell.id] = VerdictKey(
                code=code[point], stack=stack, cell=what, where=where, harness=harness_version()
            )
    return keys


def _kept(context: BisectContext, point: str, keys: Mapping[str, VerdictKey]) -> Point | None:
    verdicts = {name: read_verdict(key) for name, key in keys.items()}
    whole = [verdict for verdict in verdicts.values() if verdict is not None]
    if len(whole) < len(verdicts):
        return None
    names = {cell.id: plain_name(cell) for cell in context.chosen}
    cells = {verdict.key.cell: replace(verdict.cell, name=names[name]) for name, verdict in verdicts.items() if verdict}
    stack = next(iter(_stacks_at(context, point).values())).name
    return _point(point, tuple(cells.values()), whole[0].run, stack, kept=True)


def _run(context: BisectContext, points: Sequence[str], keys: Mapping[str, dict[str, VerdictKey]]) -> dict[str, Point]:
    """Judge points in one new run; running.json names them, so that another process can continue the run."""
    planned = _planned(context, points)
    directory = RunDir(context.folder / "runs" / planned.plan.run_id)
    begin = time.perf_counter()
    planned = plan_run.prepare_stacks(planned, once=True, user=str(context.folder))
    plan_run.write_run(directory, planned)
    write_json(_running(context), {"run": str(directory.root), "points": list(points)})
    report = campaign.follow(directory, planned.plan)
    harvest = _harvest(context, directory, report, points, keys)
    _running(context).unlink()
    release_worktrees(
        str(context.folder), (context.subject.name, *([context.pins.subject.name] if context.pins else []))
    )
    seconds = (time.perf_counter() - begin) / len(points)
    return {point: replace(judged, seconds=seconds) for point, judged in harvest.items()}


def finish_interrupted(context: BisectContext) -> None:
    """Keep the verdicts of an interrupted round: on a cluster after all its jobs, here of the points that finished."""
    if not _running(context).exists():
        return
    running = loads(text_of(_running(context)))
    directory, points = RunDir(context.folder / "runs" / Path(running["run"]).name), running["points"]
    plan = read_plan(directory)
    say(f"continuing {relative_path(directory.root)}")
    report = campaign.follow(directory, plan) if context.launcher.detached else judging.judge(directory, plan)
    _harvest(context, directory, report, [point for point in points if _has_ended(context, directory, point)])
    _running(context).unlink()


def _running(context: BisectContext) -> Path:
    """Return the file that names the run and the points of the round in progress."""
    return context.folder / "running.json"


def _has_ended(context: BisectContext, directory: RunDir, point: str) -> bool:
    return all(read_result(directory, cell.id) is not None for cell in _cells_at(context, point).values())


def _planned(context: BisectContext, points: Sequence[str]) -> plan_run.Planned:
    """Plan one run with a stack per point. Commands in its report use the matrix file of the point."""
    cells: dict[str, PlannedCell] = {}
    stacks: dict[str, Stack] = {}
    for point in points:
        file = matrix_at(context, point)
        names = ids_in_matrix_at(context, point)
        for old, cell in _cells_at(context, point).items():
            command = shlex.join(
                ["harness", "run", relative_path(file), *_cluster_option(context), "--only", names[old]]
            )
            cells.setdefault(cell.id, replace(cell, reproduce=command))
        stacks |= {stack.name: stack for stack in _stacks_at(context, point).values()}
    matrix = replace(context.matrix, stacks=stacks)
    expansion = Expansion(cells=tuple(cells.values()), rejected=())
    plan = plan_run.plan_cells(expansion, name=matrix.name, file=matrix.file, command=context.command)
    plan = replace(
        plan,
        allocations=plan_allocations(expansion, context.cluster, matrix.launch),
        tolerances=matrix.tolerances,
        cluster=context.requested_cluster,
        max_attempts=matrix.launch.max_attempts,
    )
    return plan_run.Planned(matrix=matrix, plan=plan, cluster=context.cluster, cluster_file=context.cluster_file)


def matrix_at(context: BisectContext, point: str) -> Path:
    """Return the bisection's matrix with the subject at a point, as a file; written unless it exists."""
    path = context.folder / "points" / f"{context.label(point)}.yaml"
    if not path.exists():
        stacks = {
            name: context.at(stack, point) if name in context.stacks else stack
            for name, stack in context.matrix.stacks.items()
        }
        write_atomic(path, dump(resolved(replace(context.matrix, stacks=stacks))))
    return path


def ids_in_matrix_at(context: BisectContext, point: str) -> dict[str, str]:
    """Return id in the bisection's matrix -> id in the matrix file of a point.

    Both files use the same stack names with different contents.
    """
    return {old: cell.id for old, cell in moved(context.cells, _moved_stacks(context, point)).items()}


def _cluster_option(context: BisectContext) -> list[str]:
    return ["--cluster", context.requested_cluster] if context.requested_cluster else []


def _moved_stacks(context: BisectContext, point: str) -> dict[str, Stack]:
    return {name: context.at(stack, point) for name, stack in context.stacks.items()}


def _stacks_at(context: BisectContext, point: str) -> dict[str, Stack]:
    return named_at(_moved_stacks(context, point), context.subject, context.label(point))


def _cells_at(context: BisectContext, point: str) -> dict[str, PlannedCell]:
    return moved(context.cells, _stacks_at(context, point))


def _harvest(
    context: BisectContext,
    directory: RunDir,
    report: Report,
    points: Sequence[str],
    keys: Mapping[str, dict[str, VerdictKey]] | None = None,
) -> dict[str, Point]:
    """Return the verdicts on the points of a finished run; those that are not ERROR are kept."""
    reports.write_reports(directory, report)
    keys = keys or _keys(context, points)
    names = {cell.id: plain_name(cell) for cell in context.chosen}
    harvest = {}
    for point in points:
        new, cells = _cells_at(context, point), {}
        for old, key in keys[point].items():
            cell = judged(report, new[old].id, names[old])
            cells[cell.id] = cell
            if cell.outcome is not Outcome.ERROR:
                keep_verdict(KeptVerdict(key=key, cell=cell, run=str(directory.root)))
        stack = next(iter(new.values())).config.stack
        harvest[point] = _point(point, tuple(cells.values()), str(directory.root), stack)
    return harvest


def _point(name: str, cells: tuple[JudgedCell, ...], run: str, stack: str, *, kept: bool = False) -> Point:
    state, reason = state_of(cells)
    return Point(name=name, state=state, stack=stack, cells=cells, run=run, reason=reason, kept=kept)


@dataclass(frozen=True, kw_only=True)
class VerdictKey:
    """Everything that a verdict depends on."""

    code: str  # hash of the tree under test, submodules included, or the requirement of the release
    stack: str  # everything else of the stack
    cell: str  # the cell without its stack, and its judging options
    where: str  # cluster profile or kind of machine: results differ between devices
    harness: str  # harness_version()

    @property
    def digest(self) -> str:
        """Return 32 hex digits over all of the key; the verdict's file is named after them."""
        return hashlib.sha256(dumps((VERDICT_FORMAT, self)).encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class KeptVerdict:
    """A verdict on one cell at one point, and where it comes from."""

    key: VerdictKey
    cell: JudgedCell
    run: str  # the run directory that it comes from


def read_verdict(key: VerdictKey) -> KeptVerdict | None:
    """Return the verdict; None when there is none, or its file is damaged."""
    try:
        kept = from_jsonable(KeptVerdict, loads(_verdict_file(key).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return kept if kept.key == key else None


def keep_verdict(verdict: KeptVerdict) -> None:
    """Write the verdict to its file."""
    write_json(_verdict_file(verdict.key), verdict)


def _verdict_file(key: VerdictKey) -> Path:
    return folder() / "verdicts" / f"{key.digest}.json"


@cache
def harness_version() -> str:
    """Return the version and a digest of the code, so that a changed check does not reuse an old verdict."""
    return f"{harness.__version__}-{code_digest(Path(harness.__file__).parent)}"


def code_digest(root: Path) -> str:
    """Return twelve hex digits over names and text of the Python files under `root`."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
