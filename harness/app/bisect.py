"""`harness bisect`: the first bad, or the first good, commit or release for the chosen cells."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from harness.app.bisect_evidence import tell_evidence
from harness.app.bisect_rounds import Bench, finish_interrupted, judge_points, matrix_at
from harness.app.bisect_sources import Source, commits_of, releases_of
from harness.app.ending import shown
from harness.app.selection import matching
from harness.app.stages import expand_for
from harness.edge.cluster_file import cluster_of
from harness.edge.console import say
from harness.edge.matrix_file import read_matrix
from harness.edge.run_dir import RunDir, write_json
from harness.edge.run_lock import only_launcher
from harness.edge.stack_checkout import commit_of
from harness.judge.bisect_search import NEW, OLD, UNKNOWN, Found, Judge, Undecided, next_step
from harness.judge.bisection import (
    BAD,
    FIXED,
    GOOD,
    SKIPPED,
    Bisection,
    Change,
    End,
    Parent,
    Point,
    short,
)
from harness.judge.render_bisection import render_text
from harness.plan.bisected import Subject, for_bisection, plain_name, without_twins
from harness.plan.matrix import Matrix, resolved
from harness.words.errors import InfrastructureError, InputError, Problem
from harness.words.jsonable import dumps
from harness.words.outcomes import EXIT_PASS, EXIT_UNDECIDED, Outcome
from harness.words.run_plan import Expansion, PlannedCell
from harness.words.stack import Stack

CLUSTER_JOBS = 3  # points at once on a cluster: a quarter of the history is left after each round


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for."""

    matrix: Path
    good: str
    bad: str
    repository: str | None = None
    package: str | None = None
    only: Sequence[str] = ()
    find: str = "introduced"
    paths: Sequence[str] = ()
    first_parent: bool = False
    pre: bool = False
    jobs: int | None = None  # points at once; None: one here, several on a cluster
    cluster: str | None = None
    run_parent: Path | None = None
    shrink: bool = True
    command: Sequence[str] = ()


def bisect(request: Request) -> int:
    """Search, write result.json, tell it. 0 when one point was found, 3 when skipped ones leave several."""
    source = _source(request)
    bench = _bench(request, source)
    with only_launcher(RunDir(bench.folder)):
        finish_interrupted(bench)
        found = _search(request, source, bench)
        write_json(bench.folder / "result.json", found, indent=1)
    print(render_text(found))
    if request.shrink:
        tell_evidence(found, bench)
    print(f"\n  {shown(bench.folder / 'result.json')}")
    return EXIT_PASS if found.found else EXIT_UNDECIDED


def _source(request: Request) -> Source:
    ends, options = [request.good, request.bad], ["--good", "--bad"]
    if request.find == FIXED:
        ends, options = ends[::-1], options[::-1]
    (old, new), (old_option, new_option) = ends, options
    say("looking at what lies between the ends")
    if request.package is not None:
        return releases_of(request.package, old, new, old_option=old_option, new_option=new_option, pre=request.pre)
    return commits_of(
        request.repository or "",
        old,
        new,
        old_option=old_option,
        new_option=new_option,
        paths=request.paths,
        first_parent=request.first_parent,
    )


def _bench(request: Request, source: Source) -> Bench:
    """The matrix as the bisection needs it, and the cells it asks about."""
    subject = source.subject
    matrix = read_matrix(request.matrix, lambda values: for_bisection(values, subject))
    matrix = replace(matrix, stacks={name: _pinned(stack, subject) for name, stack in matrix.stacks.items()})
    cluster, file = cluster_of(matrix, request.cluster)
    expansion = expand_for(matrix, cluster)
    chosen = _chosen(expansion, matrix, subject, request.only)
    parent = request.run_parent or Path(cluster.run_dir or "reports").expanduser()
    asked = (resolved(matrix), subject, source.old.name, source.new.name, request.find, [cell.id for cell in chosen])
    options = (list(request.paths), request.first_parent, request.pre, request.cluster)
    digest = hashlib.sha256(dumps([asked, options]).encode()).hexdigest()[:8]
    return Bench(
        matrix=matrix,
        cluster=cluster,
        cluster_file=file,
        cluster_asked=request.cluster,
        subject=subject,
        chosen=chosen,
        cells=_with_references(expansion, chosen),
        folder=parent.resolve() / f"bisect-{matrix.name}-{digest}",
        command=request.command,
        label=source.label,
        code=source.code,
    )


def _pinned(stack: Stack, subject: Subject) -> Stack:
    """The stack with its other checkouts at the commits that their refs name now, for all rounds the same."""
    found = []
    for item in stack.checkouts:
        if item.package != subject.name:
            item = replace(item, ref=commit_of(item, fetch=True))
        elif item.revert:
            raise InputError(
                Problem(
                    key=f"stacks.{stack.name}", message="reverts commits of what is searched; name them in no stack"
                )
            )
        found.append(item)
    return replace(stack, checkouts=tuple(found))


def _chosen(expansion: Expansion, matrix: Matrix, subject: Subject, patterns: Sequence[str]) -> tuple[PlannedCell, ...]:
    """The cells that --only names, by id, name, or name without the stack; without it all that can be asked."""
    cells = [cell for cell in expansion.cells if cell.role == "cell"]
    names = set()
    for pattern in patterns:
        fitting = {cell.id for cell in cells if fnmatchcase(plain_name(cell), pattern)}
        names |= fitting or set(matching(expansion, pattern, "--only "))
    wanted = [cell for cell in expansion.cells if cell.id in names] if patterns else cells
    able = [cell for cell in wanted if cell.config.stack in matrix.stacks]
    able = [cell for cell in able if subject.is_in(matrix.stacks[cell.config.stack])]
    if not able:
        where = ", ".join(dict.fromkeys(cell.config.stack for cell in wanted))
        what = f"a requirement of {subject.name}" if subject.of_releases else f"a checkout of {subject.name}"
        hint = f"a matrix without stacks gets one; else define one with {what}"
        message = f"no chosen cell runs in a stack that holds {subject.name}"
        raise InputError(Problem(message=message, file=matrix.file, found=f"stacks {where}", hint=hint))
    if len(able) < len(wanted):
        say(f"{len(wanted) - len(able)} cells are left out: their stacks do not hold {subject.name}")
    return without_twins(able, matrix.stacks, subject)


def _with_references(expansion: Expansion, chosen: Sequence[PlannedCell]) -> tuple[PlannedCell, ...]:
    wanted = {cell.id for cell in chosen}
    for cell in reversed(expansion.references_first):
        wanted |= {cell.reference} if cell.id in wanted and cell.reference else set()
    return tuple(cell for cell in expansion.cells if cell.id in wanted)


class _Verdicts:
    """The points judged so far, and what a round of judging says."""

    def __init__(self, request: Request, source: Source, bench: Bench) -> None:
        self.source, self.bench = source, bench
        self.states = {GOOD: OLD, BAD: NEW, SKIPPED: UNKNOWN}
        if request.find == FIXED:
            self.states |= {GOOD: NEW, BAD: OLD}
        self.points: dict[str, Point] = {}

    def judge(self, names: Sequence[str], why: str) -> None:
        wanted = [name for name in dict.fromkeys(names) if name not in self.points]
        if not wanted:
            return
        say(f"{why}: {', '.join(short(name, self.source.kind) for name in wanted)}")
        self.points |= judge_points(self.bench, wanted)
        for name in wanted:
            point = self.points[name]
            kept = " (judged before)" if point.kept else ""
            reason = f": {point.reason.splitlines()[0]}" if point.reason else ""
            say(f"  {short(name, self.source.kind)} is {point.state}{kept}{reason}")

    @property
    def known(self) -> dict[str, str]:
        """As the search wants them."""
        return {name: self.states[point.state] for name, point in self.points.items()}


def _search(request: Request, source: Source, bench: Bench) -> Bisection:
    judged = _Verdicts(request, source, bench)
    history = source.history
    newest = history.points[-1]
    judged.judge([source.old.name, newest, *source.bases], "judging both ends")
    notes = _check_ends(request, source, judged, newest)
    jobs = request.jobs or (CLUSTER_JOBS if bench.cluster.kind == "slurm" else 1)
    while isinstance(step := next_step(history, judged.known, jobs), Judge):
        judged.judge(step.points, f"of {len(history.points)} {source.kind}s")
    if isinstance(step, Found):
        before = [source.stands_for(name) for name in source.about(step.point)[1]]
        if len(before) > 1:  # of a merge some may only follow from later ones
            judged.judge(before, "judging what was merged")
    return _result(request, source, bench, judged, step, notes)


def _check_ends(request: Request, source: Source, judged: _Verdicts, newest: str) -> tuple[str, ...]:
    """Notes; InputError when an end does not show what was said, InfrastructureError when it cannot be judged."""
    old_state, new_state = (BAD, GOOD) if request.find == FIXED else (GOOD, BAD)
    problems = []
    for end, name, said in ((source.old, source.old.name, old_state), (source.new, newest, new_state)):
        point = judged.points[name]
        if point.state == SKIPPED:
            raise InfrastructureError(f"--{said} {end.asked} cannot be judged: {point.reason}; see {point.run}")
        if point.state != said:
            problems.append(_other_end(end, said, point))
    notes = []
    for base in source.bases if not problems else ():
        point = judged.points[base]
        name = f"{short(base, source.kind)}, where the histories of the ends part,"
        if point.state == new_state:
            message = f"{name} is {new_state} too, so the change lies between it and --{old_state} {source.old.asked}"
            problems.append(Problem(key=f"--{new_state}", message=message, hint=f"search there: --{new_state} {base}"))
        elif point.state == SKIPPED:
            notes.append(f"{name} cannot be judged; it is taken to be {old_state}: {point.reason}")
    if problems:
        raise InputError(problems)
    return tuple(notes)


def _other_end(end: End, said: str, point: Point) -> Problem:
    """What an end shows instead of what was said."""
    first = next((item.message for item in point.findings), "every chosen cell passes")
    return Problem(
        key=f"--{said}", message=f"{end.asked} is {point.state}: {first}", hint=f"see {shown(Path(point.run))}"
    )


def _result(
    request: Request,
    source: Source,
    bench: Bench,
    judged: _Verdicts,
    step: Found | Undecided,
    notes: tuple[str, ...],
) -> Bisection:
    names = [step.point] if isinstance(step, Found) else list(step.points)
    candidates = tuple(_change(source, judged, name, request) for name in names)
    evidence, contrast = _sides(request, source, judged, names, candidates)
    file = matrix_at(bench, evidence.name)
    failed = {cell.name for cell in evidence.cells if cell.outcome is Outcome.FAIL}
    only = [part for cell in bench.chosen if plain_name(cell) in failed for part in ("--only", cell.id)]
    cluster = ["--cluster", request.cluster] if request.cluster else []
    ends = (source.new, source.old) if request.find == FIXED else (source.old, source.new)
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
        cells=tuple(dict.fromkeys(plain_name(cell) for cell in bench.chosen)),
        findings=evidence.findings,
        evidence=evidence,
        points=tuple(sorted(judged.points.values(), key=lambda point: order.get(point.name, -1))),
        matrix=str(request.matrix),
        reproduce_matrix=str(file),
        contrast_matrix=str(matrix_at(bench, contrast)),
        reproduce=shlex.join(["harness", "run", shown(file), *cluster, *only]),
        command=shlex.join(request.command),
        notes=notes,
    )


def _change(source: Source, judged: _Verdicts, name: str, request: Request) -> Change:
    known, before = source.about(name)
    implied = f"implied {BAD if request.find == FIXED else GOOD}"
    parents = []
    for parent in before:
        point = judged.points.get(source.stands_for(parent))
        parents.append(Parent(name=parent, state=point.state if point else implied))
    return replace(known, parents=tuple(parents))


def _sides(
    request: Request, source: Source, judged: _Verdicts, names: Sequence[str], candidates: Sequence[Change]
) -> tuple[Point, str]:
    """The bad point nearest to the change, and the name of the good one."""
    points = judged.points
    newer = next((name for name in names if name in points and judged.known[name] == NEW), source.history.points[-1])
    before = [source.stands_for(parent.name) for parent in candidates[0].parents]
    older = next((name for name in before if judged.known.get(name) == OLD), source.old.name)
    return (points[older], newer) if request.find == FIXED else (points[newer], older)
