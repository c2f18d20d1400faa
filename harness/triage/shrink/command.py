"""`harness shrink`: the smallest layout in which a failed cell of a run still fails, in the same lane and check.

Each round runs its candidate cells in one run below RUN/shrink/CELL. The answers are kept there, so that an interrupted
shrink continues where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.campaign import judging
from harness.campaign.selection import find_run, matching, select
from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED, Finding, Lane, Outcome
from harness.core.run.events import append_line, read_lines
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, ReportCell
from harness.core.run.run_dir import RunDir, write_atomic, write_json
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.core.serialization import dumps, from_jsonable
from harness.core.stack import ReadyStack
from harness.infra import screen
from harness.infra.screen import relative_path
from harness.inputs.yaml_file import dump
from harness.launch.stacks.checkout import release_worktrees
from harness.launch.stacks.prepare import prepare
from harness.matrix.load import one_cell, pinned
from harness.reporting.console import say
from harness.runs.evidence_files import read_plan, read_result
from harness.triage.shrink.search import Answer, Kind, Smallest, head_lines, minimal_cell, search, smallest_text
from harness.triage.shrink.trials import Shrunk, answer_of, run_cells, sort_of

MAX_ROUNDS = 20
_FAILED = (Outcome.FAIL, Outcome.XFAIL)


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The failed cell, and what every tried cell shares with it."""

    plan: RunPlan
    planned: PlannedCell
    cell: ReportCell
    finding: Finding
    provenance: Provenance
    stacks: dict[str, ReadyStack]
    folder: Path


def shrink(
    name: str, pattern: str, run_parent: Path, *, rounds: int = MAX_ROUNDS, check: str | None = None, issue: bool
) -> int:
    """Shrink and print the smallest cell and what it needs; return 3 when the finding does not reproduce.

    `check`: the check that must still fail; None: that of the leading finding. `issue`: write issue.md and, for cells
    that have them, standalone reproducers too.
    """
    from harness.triage.shrink.reproducers import write_issue, write_reproducers

    directory = find_run(name, run_parent)
    if issue and (faults := read_plan(directory).faults):
        message = f"{', '.join(faults)} was injected into this run: there is no bug to report"
        raise InputError(Problem(key="--issue", message=message, file=str(directory.root)))
    shrunk = shrink_cell(directory, pattern, rounds=rounds, check=check)
    screen.out(smallest_text(shrunk.smallest, relative_path(shrunk.matrix or shrunk.folder)))
    if issue:
        written = write_reproducers(shrunk)
        screen.out(f"issue: {relative_path(write_issue(shrunk, standalone=written))}")
        screen.out(written.lines)
    return EXIT_PASS if shrunk.matrix else EXIT_UNDECIDED


def shrink_cell(directory: RunDir, pattern: str, *, rounds: int = MAX_ROUNDS, check: str | None = None) -> Shrunk:
    """Shrink the failed cell of a run that the pattern matches; write smallest.yaml and shrink.json.

    InputError unless exactly one has failed and can be tried on this machine.
    """
    origin = _origin(directory, pattern, check)
    finding = origin.finding
    say(f"shrinking {origin.cell.id}: {finding.lane.value}, {finding.check}: {finding.message}")
    trial = _Trial(origin)
    searching = search(_start(directory, origin), rounds)
    answers: Mapping[CellConfig, Answer] | None = None
    while True:
        try:
            requested = next(searching) if answers is None else searching.send(answers)
        except StopIteration as ended:
            shrunk = _write(origin, trial, ended.value)
            release_worktrees(str(origin.folder))
            return shrunk
        answers = trial.answers(requested)


def _origin(directory: RunDir, pattern: str, check: str | None) -> _Origin:
    plan = read_plan(directory)
    chosen = matching(plan.expansion, pattern)
    report = judging.judge(directory, replace(plan, expansion=select(plan.expansion, chosen)))
    failed = [cell for cell in report.cells if cell.id in chosen and cell.outcome in _FAILED]
    if len(failed) != 1:
        raise InputError(_not_one(pattern, failed, report, chosen))
    (cell,) = failed
    planned = next(candidate for candidate in plan.expansion.cells if candidate.id == cell.id)
    errors = cell.errors
    finding = next((error for error in errors if check in (None, error.check)), None)
    problem = _cannot(planned, finding, plan)
    if problem or finding is None:
        raise InputError(Problem(message=f"{cell.id} cannot be shrunk: {problem}"))
    ready = plan.stacks.get(planned.config.stack)
    folder = directory.root.resolve() / "shrink" / cell.id
    stacks = prepare([pinned(ready)], say, user=str(folder)) if ready else {}
    unusable = [stack.error for stack in stacks.values() if not stack.usable]
    if unusable:
        raise InfrastructureError(f"stack {planned.config.stack} cannot be prepared again: {unusable[0]}")
    return _Origin(
        plan=plan,
        planned=planned,
        cell=cell,
        finding=finding,
        provenance=report.provenance,
        stacks=stacks,
        folder=folder,
    )


def _not_one(pattern: str, failed: Sequence[ReportCell], report: Report, chosen: Sequence[str]) -> Problem:
    if failed:
        return Problem(message=f"{pattern}: {len(failed)} cells failed", allowed=", ".join(cell.id for cell in failed))
    outcomes = [f"{cell.id} {cell.outcome.value}" for cell in report.cells if cell.id in chosen]
    outcomes += [f"{cell.id} REJECTED" for cell in report.rejected]
    return Problem(
        message=f"{pattern}: no cell failed", found=", ".join(outcomes), hint="only FAIL and XFAIL can be shrunk"
    )


def _cannot(planned: PlannedCell, finding: Finding | None, plan: RunPlan) -> str:
    """Return why the cell cannot be shrunk, or ''."""
    ready = plan.stacks.get(planned.config.stack)
    if finding is None:
        return "it has no finding, or none of that check"
    if ready is not None and ready.requested.container:
        return f"its stack {planned.config.stack} is a container, and cells are tried on this machine"
    if finding.lane is Lane.THROUGHPUT and planned.base:
        return "its timing is interleaved with that of another stack"
    return ""


def _start(directory: RunDir, origin: _Origin) -> CellConfig:
    result = read_result(directory, origin.cell.id)
    config = origin.planned.config
    return minimal_cell(config, origin.finding, result.finished - result.started if result else config.deadline_s)


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """A line of answers.jsonl: the answer for one cell."""

    event: str = "tried"
    key: str  # hash of the cell, the wanted finding and the code under test
    kind: Kind
    text: str
    cell: str
    run: str  # folder of the round

    @property
    def answer(self) -> Answer:
        """Return the line as an answer of the search."""
        return Answer(kind=self.kind, text=self.text)


def _read_tried(path: Path) -> dict[str, _Tried]:
    """Return the newest line of every key; damaged lines are skipped, so their cells are tried again."""
    by_key: dict[str, _Tried] = {}
    for line in read_lines(path):
        with suppress(TypeError, ValueError):
            tried = from_jsonable(_Tried, line)
            by_key[tried.key] = tried
    return by_key


class _Trial:
    """Runs the cells of a round and keeps their answers."""

    def __init__(self, origin: _Origin) -> None:
        self.origin = origin
        self.journal = origin.folder / "answers.jsonl"
        moving = any(not checkout.ref for stack in origin.stacks.values() for checkout in stack.requested.checkouts)
        self.known = {} if moving else _read_tried(self.journal)  # a working tree may have been changed since
        self.round = 0

    def answers(self, requested: Sequence[CellConfig]) -> dict[CellConfig, Answer]:
        """Return the answer for each cell; cells with a kept answer do not run again."""
        self.round += 1
        new = [config for config in requested if self._key(config) not in self.known]
        say(
            f"round {self.round}: {len(requested)} cells"
            + (f", {len(requested) - len(new)} known" if new != [*requested] else "")
        )
        if new:
            self._run(new)
        return {config: self.known[self._key(config)].answer for config in requested}

    def _run(self, new: Sequence[CellConfig]) -> None:
        origin = self.origin
        number = 1 + sum(1 for _ in origin.folder.glob("round-*"))
        directory = RunDir(origin.folder / f"round-{number:02}")
        report = run_cells(
            directory,
            new,
            stacks=origin.stacks,
            tolerances=origin.plan.tolerances,
            matrix_file=origin.plan.matrix_file,
            command=["harness", "shrink", str(origin.folder.parent.parent), origin.cell.id],
        )
        for config in new:
            answer = answer_of(report, cell_id(config), origin.finding)
            tried = _Tried(
                key=self._key(config),
                kind=answer.kind,
                text=answer.text,
                cell=cell_id(config),
                run=directory.root.name,
            )
            self.known[tried.key] = tried
            if answer.kind is not Kind.UNUSABLE:  # a later try may be decided
                append_line(self.journal, tried)

    def judged_again(self, config: CellConfig) -> tuple[Report, ReportCell]:
        """Return the report of the run that tried a cell, reduced to that cell, and the cell in it."""
        name = cell_id(config)
        directory = RunDir(self.origin.folder / self.known[self._key(config)].run)
        plan = read_plan(directory)
        report = judging.judge(directory, replace(plan, expansion=select(plan.expansion, [name])))
        return report, next(cell for cell in report.cells if cell.id == name)

    def _key(self, config: CellConfig) -> str:
        stack = self.origin.stacks.get(config.stack)
        code = (stack.commits, stack.packages) if stack else ()
        text = dumps([config, sort_of(self.origin.finding), code])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(origin: _Origin, trial: _Trial, smallest: Smallest) -> Shrunk:
    """Write smallest.yaml, with its findings in comments, and shrink.json."""
    ready = origin.stacks.get(origin.planned.config.stack)
    write_json(origin.folder / "shrink.json", {"schema_version": 1, "cell": origin.cell.id, "smallest": smallest})
    shrunk = Shrunk(
        folder=origin.folder,
        origin=origin.cell,
        finding=origin.finding,
        smallest=smallest,
        cell=origin.cell,
        config=origin.planned.config,
        provenance=origin.provenance,
        matrix=None,
        stack=ready.requested if ready else None,
        tolerances=origin.plan.tolerances,
    )
    if smallest.config is None:
        return shrunk
    values = one_cell(smallest.config, name="smallest", stack=shrunk.stack, tolerances=shrunk.tolerances)
    matrix = origin.folder / "smallest.yaml"
    head = "".join(f"# {line}".rstrip() + "\n" for line in head_lines(smallest, origin.cell.id, origin.finding))
    write_atomic(matrix, head + dump(values))
    report, cell = trial.judged_again(smallest.config)
    return replace(shrunk, cell=cell, config=smallest.config, provenance=report.provenance, matrix=matrix)
