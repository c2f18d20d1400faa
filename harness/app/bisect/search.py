"""The search of a bisection: judges both ends, then round after round until the result is known."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.app.arguments import CLUSTER_JOBS
from harness.app.bisect.rounds import BisectContext, ids_in_matrix_at, judge_points, matrix_at
from harness.app.bisect.sources import Source
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.outcomes import Outcome
from harness.infra.console import say
from harness.infra.screen import relative_path
from harness.judge.bisect.result import Bisection, Change, End, Find, Parent, Point, PointState, short
from harness.judge.bisect.search import NEW, OLD, UNKNOWN, Found, Judge, Undecided, next_step
from harness.plan.stacks.bisection_cells import plain_name


@dataclass(frozen=True, kw_only=True)
class BisectRequest:
    """The options of `harness bisect`."""

    matrix: Path
    good: str
    bad: str
    repository: str | None = None
    package: str | None = None
    only: Sequence[str] = ()
    find: Find = Find.INTRODUCED
    paths: Sequence[str] = ()
    first_parent: bool = False
    pre: bool = False
    setup: str = ""  # --run
    fresh: bool = False
    nested: str = ""  # a submodule or package that the commits pin; searched next if the found commit moves it
    jobs: int | None = None  # points at once; None: one here, several on a cluster
    cluster: str | None = None
    run_parent: Path | None = None
    shrink: bool = True
    command: Sequence[str] = ()


class Verdicts:
    """The points judged so far; prints each round."""

    def __init__(self, request: BisectRequest, source: Source, context: BisectContext) -> None:
        self.source, self.context = source, context
        self.states = {PointState.GOOD: OLD, PointState.BAD: NEW, PointState.SKIPPED: UNKNOWN}
        if request.find is Find.FIXED:
            self.states |= {PointState.GOOD: NEW, PointState.BAD: OLD}
        self.points: dict[str, Point] = {}

    def judge(self, names: Sequence[str], why: str) -> None:
        wanted = [name for name in dict.fromkeys(names) if name not in self.points]
        if not wanted:
            return
        say(f"{why}: {', '.join(short(name, self.source.kind) for name in wanted)}")
        self.points |= judge_points(self.context, wanted)
        for name in wanted:
            point = self.points[name]
            kept = " (judged before)" if point.kept else ""
            reason = f": {point.reason.splitlines()[0]}" if point.reason else ""
            say(f"  {short(name, self.source.kind)} is {point.state}{kept}{reason}")

    @property
    def known(self) -> dict[str, str]:
        """Point -> state, for the search."""
        return {name: self.states[point.state] for name, point in self.points.items()}


def search(request: BisectRequest, source: Source, context: BisectContext) -> Bisection:
    """Judge both ends, then as few points as possible to find the change."""
    judged = Verdicts(request, source, context)
    history = source.history
    newest = history.points[-1]
    judged.judge([source.old.name, newest, *source.bases], "judging both ends")
    notes = _check_ends(request, source, judged, newest)
    jobs = request.jobs or (CLUSTER_JOBS if context.launcher.detached else 1)
    while isinstance(step := next_step(history, judged.known, jobs), Judge):
        judged.judge(step.points, f"of {len(history.points)} {source.kind}s")
    if isinstance(step, Found):
        before = [source.stands_for(name) for name in source.about(step.point)[1]]
        if len(before) > 1:  # the state of a merge's parents may only be implied by later commits
            judged.judge(before, "judging the parents of the merge")
    return _result(request, source, context, judged, step, notes)


def _check_ends(request: BisectRequest, source: Source, judged: Verdicts, newest: str) -> tuple[str, ...]:
    """Notes for the result; InputError when an end does not behave as stated, InfrastructureError when one cannot be
    judged."""
    old_state, new_state = (
        (PointState.BAD, PointState.GOOD) if request.find is Find.FIXED else (PointState.GOOD, PointState.BAD)
    )
    problems = []
    for end, name, stated in ((source.old, source.old.name, old_state), (source.new, newest, new_state)):
        point = judged.points[name]
        if point.state is PointState.SKIPPED:
            raise InfrastructureError(f"--{stated} {end.requested} cannot be judged: {point.reason}; see {point.run}")
        if point.state != stated:
            problems.append(_wrong_state(end, stated, point))
    notes = []
    for base in source.bases if not problems else ():
        point = judged.points[base]
        name = f"the merge base of both ends, {short(base, source.kind)},"
        if point.state == new_state:
            message = f"{name} is {new_state} too, so the change is between it and --{old_state} {source.old.requested}"
            problems.append(Problem(key=f"--{new_state}", message=message, hint=f"search there: --{new_state} {base}"))
        elif point.state is PointState.SKIPPED:
            notes.append(f"{name} cannot be judged and is assumed {old_state}: {point.reason}")
    if problems:
        raise InputError(problems)
    return tuple(notes)


def _wrong_state(end: End, stated: str, point: Point) -> Problem:
    """The error for an end that does not behave as --good or --bad states."""
    first = next((item.message for item in point.findings), "every chosen cell passes")
    return Problem(
        key=f"--{stated}",
        message=f"{end.requested} is {point.state}: {first}",
        hint=f"see {relative_path(Path(point.run))}",
    )


def _result(
    request: BisectRequest,
    source: Source,
    context: BisectContext,
    judged: Verdicts,
    step: Found | Undecided,
    notes: tuple[str, ...],
) -> Bisection:
    names = [step.point] if isinstance(step, Found) else list(step.points)
    candidates = tuple(_change(source, judged, name, request) for name in names)
    evidence, contrast = _sides(request, source, judged, names, candidates)
    file = matrix_at(context, evidence.name)
    failed = {cell.name for cell in evidence.cells if cell.outcome is Outcome.FAIL}
    ids = ids_in_matrix_at(context, evidence.name)
    only = [part for cell in context.chosen if plain_name(cell) in failed for part in ("--only", ids[cell.id])]
    cluster = ["--cluster", request.cluster] if request.cluster else []
    ends = (source.new, source.old) if request.find is Find.FIXED else (source.old, source.new)
    order = {name: place for place, name in enumerate([source.old.name, *source.bases, *source.history.points])}
    return Bisection(
        find=request.find,
        kind=source.kind,
        project=source.subject.name,
        repository=source.subject.repository,
        good=ends[0],
        bad=ends[1],
        found=candidates[0] if isinstance(step, Found) else None,
        candidates=candidates,
        cells=tuple(dict.fromkeys(plain_name(cell) for cell in context.chosen)),
        findings=evidence.findings,
        evidence=evidence,
        points=tuple(sorted(judged.points.values(), key=lambda point: order.get(point.name, -1))),
        matrix=str(request.matrix),
        reproduce_matrix=str(file),
        contrast_matrix=str(matrix_at(context, contrast)),
        contrast=contrast,
        reproduce=shlex.join(["harness", "run", relative_path(file), *cluster, *only]),
        command=shlex.join(request.command),
        notes=notes,
    )


def _change(source: Source, judged: Verdicts, name: str, request: BisectRequest) -> Change:
    known, before = source.about(name)
    implied = f"implied {PointState.BAD if request.find is Find.FIXED else PointState.GOOD}"
    parents = []
    for parent in before:
        point = judged.points.get(source.stands_for(parent))
        parents.append(Parent(name=parent, state=point.state if point else implied))
    return replace(known, parents=tuple(parents))


def _sides(
    request: BisectRequest, source: Source, judged: Verdicts, names: Sequence[str], candidates: Sequence[Change]
) -> tuple[Point, str]:
    """The bad point nearest to the change, and the name of the nearest good one."""
    points = judged.points
    newer = next((name for name in names if name in points and judged.known[name] == NEW), source.history.points[-1])
    before = [source.stands_for(parent.name) for parent in candidates[0].parents]
    older = next((name for name in before if judged.known.get(name) == OLD), source.old.name)
    return (points[older], newer) if request.find is Find.FIXED else (points[newer], older)
