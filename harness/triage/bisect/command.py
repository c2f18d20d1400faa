"""`harness bisect`: the first bad, or the first good, commit or release for the chosen cells.

Both ends are judged, then round after round until the result is known. Then the first failed cell is shrunk, the change
confirmed by reverting it, and the files of the result are written.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from harness.campaign.options import CLUSTER_JOBS, RUN_PARENT
from harness.campaign.planning import expand_for
from harness.campaign.selection import find_run, matching
from harness.core.cell.identity import cell_id
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED, Outcome
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.core.serialization import dumps
from harness.core.stack import ReadyStack, Stack, digest
from harness.core.text import counted
from harness.infra import screen
from harness.infra.files import expanded
from harness.infra.screen import relative_path
from harness.inputs.cluster_file import cluster_of
from harness.inputs.matrix_file import read_matrix
from harness.inputs.working_tree import matrix_here, tree_at, working_tree
from harness.launch.stacks.checkout import commit_of, release_worktrees
from harness.launch.stacks.prepare import prepare
from harness.matrix.load import Matrix, resolved
from harness.matrix.stacks.bisection_cells import Subject, for_bisection, plain_name, without_twins
from harness.matrix.stacks.recipes import WorkingTree
from harness.reporting.bisection import (
    Bisection,
    Change,
    End,
    Find,
    Parent,
    Point,
    PointKind,
    PointState,
    render_text,
    short,
)
from harness.reporting.console import say
from harness.runs.lock import only_launcher
from harness.triage.bisect.rounds import BisectContext, finish_interrupted, ids_in_matrix_at, judge_points, matrix_at
from harness.triage.bisect.search import NEW, OLD, UNKNOWN, Found, Judge, Undecided, next_step
from harness.triage.bisect.sources import Commits, Pins, Source, commits_of, pins_of, releases_of
from harness.triage.shrink.command import shrink_cell
from harness.triage.shrink.reproducers import Ends, write_issue, write_reproducers
from harness.triage.shrink.search import Answer, Kind, smallest_text
from harness.triage.shrink.trials import Shrunk, answer_of, run_cells


def bisect(request: BisectRequest) -> int:
    """Search, write result.json, print it; return 0 when one point was found, 3 when skipped ones leave several."""
    source = _source(request)
    context = _context(request, source)
    with only_launcher(RunDir(context.folder)):
        finish_interrupted(context)
        bisection = search(request, source, context)
        if context.pins is not None and isinstance(source, Commits):
            bisection = _search_nested(request, source, context, context.pins, bisection)
        write_json(context.folder / "result.json", bisection, indent=1)
    screen.out(screen.wrapped(render_text(bisection)))
    if request.shrink:
        report_evidence(bisection, context)
    release_worktrees(str(context.folder))
    screen.out(f"\n  {relative_path(context.folder / 'result.json')}")
    return EXIT_PASS if bisection.found else EXIT_UNDECIDED


def _source(request: BisectRequest) -> Source:
    ends, options = [request.good, request.bad], ["--good", "--bad"]
    if request.find is Find.FIXED:
        ends, options = ends[::-1], options[::-1]
    (old, new), (old_option, new_option) = ends, options
    say("listing the points between the ends")
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
        setup=request.setup,
    )


def _context(request: BisectRequest, source: Source) -> BisectContext:
    """Prepare the bisection's matrix and the cells that decide."""
    subject = source.subject
    pins = _pins(request, source)
    tree_of = partial(_tree, source)
    file = matrix_here(request.matrix, tree_of)
    matrix = read_matrix(file, lambda values: for_bisection(values, subject), tree_of)
    matrix = replace(matrix, stacks={name: _pinned(stack, subject) for name, stack in matrix.stacks.items()})
    cluster, cluster_file = cluster_of(matrix, request.cluster)
    expansion = expand_for(matrix, cluster)
    chosen = _chosen(expansion, matrix, subject, request.only)
    if pins is not None:
        _chosen(
            expansion, matrix, pins.subject, [cell.id for cell in chosen]
        )  # their stacks must hold the nested project too
    parent = request.run_parent or expanded(cluster.run_dir or str(RUN_PARENT))
    requested = (
        resolved(matrix),
        subject,
        source.old.name,
        source.new.name,
        request.find,
        [cell.id for cell in chosen],
    )
    options = (list(request.paths), request.first_parent, request.pre, request.cluster, request.nested)
    digest = hashlib.sha256(dumps([requested, options]).encode()).hexdigest()[:8]
    return BisectContext(
        matrix=matrix,
        cluster=cluster,
        cluster_file=cluster_file,
        requested_cluster=request.cluster,
        subject=subject,
        chosen=chosen,
        cells=_with_controls(expansion, chosen),
        folder=parent.resolve() / f"bisect-{matrix.name}-{digest}",
        fresh=request.fresh,
        command=request.command,
        at=pins.with_outer(subject) if pins else subject.at,
        pins=pins,
        label=source.label,
        code=source.code,
    )


def _tree(source: Source) -> WorkingTree:
    """Return the checkout that the recipe `working-tree` names: where one stands, if it is of the searched project."""
    here = working_tree()
    if not isinstance(source, Commits) or here.project == source.subject.name:
        return here
    place = source.repository.path
    return tree_at(place) or WorkingTree(str(place), source.subject.name)  # the mirror of a URL has no files


def _pins(request: BisectRequest, source: Source) -> Pins | None:
    if not request.nested:
        return None
    if not isinstance(source, Commits):
        message = "releases pin no other project, only commits do"
        raise InputError(Problem(key="--nested", message=message, hint="search commits with --repo"))
    return pins_of(source.repository, request.nested, source.new.name)


def _search_nested(
    request: BisectRequest, source: Commits, context: BisectContext, pins: Pins, bisection: Bisection
) -> Bisection:
    """Search inside the submodule or package that the found commit moved; all else stays as before that commit."""
    if bisection.found is None:
        return bisection
    before, after = bisection.found.parents[0].name, bisection.found.name
    old, new = pins.of(before), pins.of(after)
    if old == new:
        return replace(bisection, notes=(*bisection.notes, f"the found commit does not move {request.nested}"))
    say(f"{request.nested} moved from {old[:12]} to {new[:12]}: searching there")
    ends = ("--bad", "--good") if request.find is Find.FIXED else ("--good", "--bad")
    options: dict[str, Any] = {"old_option": f"{ends[0]} (pinned)", "new_option": f"{ends[1]} (pinned)"}
    subject = pins.subject
    try:
        inner: Source
        if subject.of_releases:
            inner = releases_of(subject.name, old, new, **options, pre=request.pre)
        else:
            inner = commits_of(subject.repository, old, new, **options, first_parent=request.first_parent)
        stacks = {name: source.subject.at(stack, before) for name, stack in context.matrix.stacks.items()}
        nested = replace(
            context,
            matrix=replace(context.matrix, stacks=stacks),
            subject=inner.subject,
            at=inner.subject.at,
            pins=None,
            folder=context.folder / "nested",
            label=inner.label,
            code=inner.code,
        )
        finish_interrupted(nested)
        bisection = replace(bisection, nested=search(request, inner, nested))
        release_worktrees(str(nested.folder))
        return bisection
    except InputError as error:
        return replace(bisection, notes=(*bisection.notes, f"not found inside {request.nested}: {error}"))


def _pinned(stack: Stack, subject: Subject) -> Stack:
    """Return the stack with its other checkouts pinned to the commits that their refs name now, for all rounds."""
    checkouts = []
    for checkout in stack.checkouts:
        if checkout.package != subject.name and checkout.ref:
            checkout = replace(checkout, ref=commit_of(checkout, fetch=True))
        checkouts.append(checkout)
    return replace(stack, checkouts=tuple(checkouts))


def _chosen(expansion: Expansion, matrix: Matrix, subject: Subject, patterns: Sequence[str]) -> tuple[PlannedCell, ...]:
    """Return the cells that can be bisected, or those that --only names by id, name, or name without the stack."""
    cells = [cell for cell in expansion.cells if cell.role == "cell"]
    names = set()
    for pattern in patterns:
        fitting = {cell.id for cell in cells if fnmatchcase(plain_name(cell), pattern)}
        names |= fitting or set(matching(expansion, pattern, "--only "))
    wanted = [cell for cell in expansion.cells if cell.id in names] if patterns else cells
    usable = [cell for cell in wanted if cell.config.stack in matrix.stacks]
    usable = [cell for cell in usable if subject.is_in(matrix.stacks[cell.config.stack])]
    if not usable:
        where = ", ".join(dict.fromkeys(cell.config.stack for cell in wanted))
        what = f"a requirement of {subject.name}" if subject.of_releases else f"a checkout of {subject.name}"
        hint = f"define a stack with {what}, or remove `stacks` from the matrix"
        message = f"no chosen cell runs in a stack that holds {subject.name} without reverted commits"
        raise InputError(Problem(message=message, file=matrix.file, found=f"stacks {where}", hint=hint))
    if len(usable) < len(wanted):
        why = f"the stack does not hold {subject.name}, or reverts commits of it"
        say(f"left out: {counted(len(wanted) - len(usable), 'cell')}, because {why}")
    return without_twins(usable, matrix.stacks, subject)


def _with_controls(expansion: Expansion, chosen: Sequence[PlannedCell]) -> tuple[PlannedCell, ...]:
    wanted = {cell.id for cell in chosen}
    wanted |= {cell.control for cell in chosen if cell.control}
    return tuple(cell for cell in expansion.cells if cell.id in wanted)


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
        """Judge the points that are not judged yet, and print `why` and what they turned out to be."""
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
        """Return point -> state, for the search."""
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
    """Return notes for the result.

    Raise InputError when an end does not behave as stated, InfrastructureError when one cannot be judged.
    """
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
    """Return the error for an end that does not behave as --good or --bad states."""
    first = next((finding.message for finding in point.findings), "every chosen cell passes")
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
    """Return the bad point nearest to the change, and the name of the nearest good one."""
    points = judged.points
    newer = next((name for name in names if name in points and judged.known[name] == NEW), source.history.points[-1])
    before = [source.stands_for(parent.name) for parent in candidates[0].parents]
    older = next((name for name in before if judged.known.get(name) == OLD), source.old.name)
    return (points[older], newer) if request.find is Find.FIXED else (points[newer], older)


_PLAIN, _REVERTED = "newest", "newest-reverted"  # stacks


def report_evidence(bisection: Bisection, context: BisectContext) -> None:
    """Shrink, confirm, write and print. Failures are printed; they do not change the result of the bisection."""
    point = bisection.evidence
    failed = next((cell for cell in point.cells if cell.outcome is Outcome.FAIL), None) if point else None
    if point is None or failed is None:
        return
    if context.launcher.detached:
        screen.out(
            f"  not shrunk on the cluster; on one machine: harness shrink {relative_path(Path(point.run))} {failed.id}"
        )
        return
    try:
        shrunk = shrink_cell(find_run(point.run, context.folder), failed.id)
    except (InputError, InfrastructureError) as error:
        screen.out(f"  not shrunk: {_first_line(error)}")
        return
    confirmation = confirmed(bisection, shrunk, context.folder)
    screen.out(smallest_text(shrunk.smallest, relative_path(shrunk.matrix or shrunk.folder)))
    if confirmation:
        screen.out(confirmation)
    written = write_reproducers(shrunk, _ends_of(bisection, context, shrunk.stack), context.folder)
    screen.out(f"issue: {relative_path(write_issue(shrunk, bisection, confirmation, context.folder, written))}")
    screen.out(written.lines)


def _ends_of(bisection: Bisection, context: BisectContext, stack: Stack | None) -> Ends | None:
    if stack is None or bisection.evidence is None:
        return None
    bad, good = (
        f"{bisection.project} {short(name, bisection.kind)}" for name in (bisection.evidence.name, bisection.contrast)
    )
    return Ends(bad=bad, good=good, good_stack=replace(context.at(stack, bisection.contrast), name="good"))


def confirmed(bisection: Bisection, shrunk: Shrunk, folder: Path) -> str:
    """Run the smallest cell at an end that has the change, with and without a revert.

    Return the result as text, '' unless one commit was found.
    """
    if bisection.kind != PointKind.COMMIT or bisection.found is None or shrunk.stack is None:
        return ""
    end = bisection.good if bisection.find is Find.FIXED else bisection.bad
    name, change = short(end.name, PointKind.COMMIT), short(bisection.found.name, PointKind.COMMIT)
    say(f"confirming: {name} with {change} reverted")
    try:
        stacks = prepare(_ends(bisection, end, shrunk.stack), say, user=str(folder))
    except (InputError, InfrastructureError) as error:
        return f"not confirmed: {name} with {change} reverted cannot be prepared: {_first_line(error)}"
    if not stacks[_REVERTED].usable:
        why = stacks[_REVERTED].error
        return f"not confirmed: {name} with {change} reverted cannot be prepared: {' '.join(why.split())}"
    answers = _answers(bisection, shrunk, stacks, folder)
    plain, reverted = answers[_PLAIN], answers[_REVERTED]
    unreverted = Kind.PASSES if bisection.find is Find.FIXED else Kind.SAME
    wanted = Kind.SAME if bisection.find is Find.FIXED else Kind.PASSES
    if plain.kind is not unreverted:
        return f"not confirmed: the smallest cell {plain.text} at {name} itself"
    word = "confirmed" if reverted.kind is wanted else "not confirmed"
    return f"{word}: {name} with {change} reverted {reverted.text}"


def _ends(bisection: Bisection, end: End, stack: Stack) -> list[Stack]:
    assert bisection.found is not None
    others = [checkout for checkout in stack.checkouts if checkout.package != bisection.project]
    searched = next(checkout for checkout in stack.checkouts if checkout.package == bisection.project)
    plain = replace(searched, ref=end.name)
    reverted = replace(plain, revert=(bisection.found.name,))
    return [
        replace(stack, name=name, checkouts=(checkout, *others))
        for name, checkout in ((_PLAIN, plain), (_REVERTED, reverted))
    ]


def _answers(bisection: Bisection, shrunk: Shrunk, stacks: Mapping[str, ReadyStack], folder: Path) -> dict[str, Answer]:
    """Return name of a stack -> answer for the smallest cell in it."""
    configs = {
        name: replace(shrunk.config, stack=name, made_of=digest(stack.requested)) for name, stack in stacks.items()
    }
    number = 1 + sum(1 for _ in folder.glob("confirmation-*"))
    report = run_cells(
        RunDir(folder / f"confirmation-{number}"),
        configs.values(),
        stacks=stacks,
        tolerances=shrunk.tolerances,
        matrix_file=bisection.matrix,
        command=[bisection.command],
    )
    return {name: answer_of(report, cell_id(config), shrunk.finding) for name, config in configs.items()}


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())
