"""`harness bisect`: the first bad, or the first good, commit or release for the chosen cells."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from harness.app.arguments import RUN_PARENT
from harness.app.bisect.evidence import report_evidence
from harness.app.bisect.nested import Pins, pins_of
from harness.app.bisect.rounds import BisectContext, finish_interrupted
from harness.app.bisect.search import BisectRequest, search
from harness.app.bisect.sources import Commits, Source, commits_of, releases_of
from harness.app.pipeline.planning import expand_for
from harness.app.selection import matching
from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.core.serialization import dumps
from harness.core.stack import Stack
from harness.core.text import counted
from harness.infra import screen
from harness.infra.console import say
from harness.infra.inputs.cluster_file import cluster_of
from harness.infra.inputs.files import expanded
from harness.infra.inputs.matrix_file import read_matrix
from harness.infra.runs.lock import only_launcher
from harness.infra.screen import relative_path
from harness.infra.stacks.checkout import commit_of, release_worktrees
from harness.judge.bisect.render import render_text
from harness.judge.bisect.result import Bisection, Find
from harness.plan.matrix.load import Matrix, resolved
from harness.plan.stacks.bisection_cells import Subject, for_bisection, plain_name, without_twins


def bisect(request: BisectRequest) -> int:
    """Search, write result.json, print it; returns 0 when one point was found, 3 when skipped ones leave several."""
    source = _source(request)
    context = _context(request, source)
    with only_launcher(RunDir(context.folder)):
        finish_interrupted(context)
        found = search(request, source, context)
        if context.pins is not None and isinstance(source, Commits):
            found = _search_nested(request, source, context, context.pins, found)
        write_json(context.folder / "result.json", found, indent=1)
    screen.out(screen.wrapped(render_text(found)))
    if request.shrink:
        report_evidence(found, context)
    release_worktrees(str(context.folder))
    screen.out(f"\n  {relative_path(context.folder / 'result.json')}")
    return EXIT_PASS if found.found else EXIT_UNDECIDED


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
    matrix = read_matrix(request.matrix, lambda values: for_bisection(values, subject))
    matrix = replace(matrix, stacks={name: _pinned(stack, subject) for name, stack in matrix.stacks.items()})
    cluster, file = cluster_of(matrix, request.cluster)
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
        cluster_file=file,
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


def _pins(request: BisectRequest, source: Source) -> Pins | None:
    if not request.nested:
        return None
    if not isinstance(source, Commits):
        message = "releases pin no other project, only commits do"
        raise InputError(Problem(key="--nested", message=message, hint="search commits with --repo"))
    return pins_of(source.repository, request.nested, source.new.name)


def _search_nested(
    request: BisectRequest, source: Commits, context: BisectContext, pins: Pins, found: Bisection
) -> Bisection:
    """Search inside the submodule or package that the found commit moved; all else stays as before that commit."""
    if found.found is None:
        return found
    before, after = found.found.parents[0].name, found.found.name
    old, new = pins.of(before), pins.of(after)
    if old == new:
        return replace(found, notes=(*found.notes, f"the found commit does not move {request.nested}"))
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
        found = replace(found, nested=search(request, inner, nested))
        release_worktrees(str(nested.folder))
        return found
    except InputError as error:
        return replace(found, notes=(*found.notes, f"not found inside {request.nested}: {error}"))


def _pinned(stack: Stack, subject: Subject) -> Stack:
    """The stack with its other checkouts pinned to the commits that their refs name now, for all rounds."""
    found = []
    for item in stack.checkouts:
        if item.package != subject.name and item.ref:
            item = replace(item, ref=commit_of(item, fetch=True))
        found.append(item)
    return replace(stack, checkouts=tuple(found))


def _chosen(expansion: Expansion, matrix: Matrix, subject: Subject, patterns: Sequence[str]) -> tuple[PlannedCell, ...]:
    """The cells that can be bisected, or those of them that --only names by id, name, or name without the stack."""
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
