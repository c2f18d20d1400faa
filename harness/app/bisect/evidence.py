"""After a bisection: shrinks the first failed cell, confirms the change by reverting it, writes its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.app.bisect.rounds import BisectContext
from harness.app.selection import find_run
from harness.app.shrink.command import shrink_cell
from harness.app.shrink.issues import write_issue
from harness.app.shrink.reproducers import Ends, write_reproducers
from harness.app.shrink.shrunk import Shrunk
from harness.app.shrink.trial_run import answer_of, run_cells
from harness.core.cell.identity import cell_id
from harness.core.errors import InfrastructureError, InputError
from harness.core.outcomes import Outcome
from harness.core.run.run_dir import RunDir
from harness.core.stack import ReadyStack, Stack, digest
from harness.infra import screen
from harness.infra.console import say
from harness.infra.screen import relative_path
from harness.infra.stacks.prepare import prepare
from harness.judge.bisect.result import Bisection, End, Find, PointKind, short
from harness.plan.shrink.search import Answer, Kind, smallest_text

_PLAIN, _REVERTED = "newest", "newest-reverted"  # stacks


def report_evidence(found: Bisection, context: BisectContext) -> None:
    """Shrink, confirm, write and print. Failures are printed; they do not change the result of the bisection."""
    point = found.evidence
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
        screen.out(f"  not shrunk: {_line(error)}")
        return
    confirmation = confirmed(found, shrunk, context.folder)
    screen.out(smallest_text(shrunk.smallest, relative_path(shrunk.matrix or shrunk.folder)))
    if confirmation:
        screen.out(confirmation)
    written = write_reproducers(shrunk, _ends_of(found, context, shrunk.stack), context.folder)
    screen.out(f"issue: {relative_path(write_issue(shrunk, found, confirmation, context.folder, written))}")
    screen.out(written.lines)


def _ends_of(found: Bisection, context: BisectContext, stack: Stack | None) -> Ends | None:
    if stack is None or found.evidence is None:
        return None
    bad, good = (f"{found.project} {short(name, found.kind)}" for name in (found.evidence.name, found.contrast))
    return Ends(bad=bad, good=good, good_stack=replace(context.at(stack, found.contrast), name="good"))


def confirmed(found: Bisection, shrunk: Shrunk, folder: Path) -> str:
    """Run the smallest cell at an end that has the change, with and without a revert; returns the result as text, empty
    unless one commit was found."""
    if found.kind != PointKind.COMMIT or found.found is None or shrunk.stack is None:
        return ""
    end = found.good if found.find is Find.FIXED else found.bad
    name, change = short(end.name, PointKind.COMMIT), short(found.found.name, PointKind.COMMIT)
    say(f"confirming: {name} with {change} reverted")
    try:
        stacks = prepare(_ends(found, end, shrunk.stack), say, user=str(folder))
    except (InputError, InfrastructureError) as error:
        return f"not confirmed: {name} with {change} reverted cannot be prepared: {_line(error)}"
    if not stacks[_REVERTED].usable:
        why = stacks[_REVERTED].error
        return f"not confirmed: {name} with {change} reverted cannot be prepared: {' '.join(why.split())}"
    answers = _answers(found, shrunk, stacks, folder)
    plain, reverted = answers[_PLAIN], answers[_REVERTED]
    unreverted = Kind.PASSES if found.find is Find.FIXED else Kind.SAME
    wanted = Kind.SAME if found.find is Find.FIXED else Kind.PASSES
    if plain.kind is not unreverted:
        return f"not confirmed: the smallest cell {plain.text} at {name} itself"
    word = "confirmed" if reverted.kind is wanted else "not confirmed"
    return f"{word}: {name} with {change} reverted {reverted.text}"


def _ends(found: Bisection, end: End, stack: Stack) -> list[Stack]:
    assert found.found is not None
    others = [item for item in stack.checkouts if item.package != found.project]
    searched = next(item for item in stack.checkouts if item.package == found.project)
    plain = replace(searched, ref=end.name)
    reverted = replace(plain, revert=(found.found.name,))
    return [
        replace(stack, name=name, checkouts=(item, *others)) for name, item in ((_PLAIN, plain), (_REVERTED, reverted))
    ]


def _answers(found: Bisection, shrunk: Shrunk, stacks: Mapping[str, ReadyStack], folder: Path) -> dict[str, Answer]:
    """Name of a stack -> answer for the smallest cell in it."""
    configs = {
        name: replace(shrunk.config, stack=name, made_of=digest(stack.requested)) for name, stack in stacks.items()
    }
    number = 1 + sum(1 for _ in folder.glob("confirmation-*"))
    report = run_cells(
        RunDir(folder / f"confirmation-{number}"),
        configs.values(),
        stacks=stacks,
        tolerances=shrunk.tolerances,
        matrix_file=found.matrix,
        command=[found.command],
    )
    return {name: answer_of(report, cell_id(config), shrunk.finding) for name, config in configs.items()}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
