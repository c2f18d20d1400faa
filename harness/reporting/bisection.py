"""The result of a bisection: the content of result.json, from which all texts about it are rendered. Pure.

A *point* is a commit or a release. It is good if every chosen cell passed, bad if one failed, and skipped otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.core.outcomes import ACCEPTED, EXIT_FAIL, EXIT_PASS, EXIT_SKIP, Finding, Outcome, StrEnum
from harness.core.run.report import Report
from harness.core.text import one_line

SCHEMA_VERSION = 1
IMPORT_FAILURE = "import-or-version"  # a class of docs/failures.md; no evidence about the results of the code
FINDINGS = 20  # kept per cell


class PointState(StrEnum):
    """What a point turned out to be."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


class Find(StrEnum):
    """The change that a bisection searches: the first bad point, or the first good one."""

    INTRODUCED = "introduced"
    FIXED = "fixed"


class PointKind(StrEnum):
    """What a point is."""

    COMMIT = "commit"
    RELEASE = "release"


@dataclass(frozen=True, kw_only=True)
class JudgedCell:
    """A chosen cell at a point."""

    id: str  # in its run; its name there ends in the name of the point's stack
    name: str  # the same at every point, e.g. "tp2-pp4-cp1-sft"
    outcome: Outcome
    findings: tuple[Finding, ...] = ()  # most informative first
    reason: str = ""  # of ERROR and REJECTED


@dataclass(frozen=True, kw_only=True)
class Point:
    """A commit or a release that was judged."""

    name: str  # full hash, or version
    state: PointState
    stack: str  # its name in the run's matrix
    cells: tuple[JudgedCell, ...]
    run: str  # run directory that shows it
    reason: str = ""  # of skipped: why it could not be judged
    kept: bool = False  # whether an earlier bisection judged it
    seconds: float = 0.0  # duration of its round over the number of points judged in it; 0 if kept

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of all failed cells."""
        return tuple(finding for cell in self.cells if cell.outcome is Outcome.FAIL for finding in cell.findings)


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A point just before another: a parent commit, or the previous release."""

    name: str
    state: str  # a PointState; or "implied good", "implied bad": by a later point that was judged


@dataclass(frozen=True, kw_only=True)
class Change:
    """A point with its description. A release has only name, parents and, where the index has it, date."""

    name: str
    subject: str = ""
    author: str = ""
    date: str = ""  # ISO
    parents: tuple[Parent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class End:
    """One end of the searched history."""

    requested: str  # as --good or --bad named it
    name: str  # full hash, or version


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The outcome. `found` is None when skipped points leave several `candidates`."""

    find: Find
    kind: PointKind
    project: str  # a key of harness.upstreams.table.PROJECTS, or a distribution
    repository: str  # absolute path of the clone; empty for releases
    good: End
    bad: End
    found: Change | None
    candidates: tuple[Change, ...]  # the points that may be the change, oldest first; only `found` if it is known
    cells: tuple[str, ...]  # names of the chosen cells, without their stack
    findings: tuple[Finding, ...]  # of the found point, or, if `fixed`, of the last bad point before it
    evidence: Point | None  # the point that has these findings
    points: tuple[Point, ...]  # all that were judged, in the order of the history
    matrix: str  # the matrix file as the user named it
    reproduce_matrix: str  # the same with its stacks at the bad point of `evidence`
    contrast_matrix: str  # the same at the good point beside it
    reproduce: str  # the command that runs the failed cells of reproduce_matrix
    command: str  # the command of the bisection itself
    contrast: str = ""  # that good point; empty in files of earlier versions
    notes: tuple[str, ...] = ()  # what the reader should know, a sentence each
    nested: Bisection | None = None  # the search in the dependency whose version the found point only updates
    schema_version: int = SCHEMA_VERSION

    @property
    def skipped(self) -> tuple[Point, ...]:
        """Return the points that could not be judged."""
        return tuple(point for point in self.points if point.state is PointState.SKIPPED)

    @property
    def title(self) -> str:
        """Return e.g. "first bad commit of megatron-lm: 1a2b3c4d5e6f Title"."""
        what = f"first {PointState.GOOD if self.find is Find.FIXED else PointState.BAD} {self.kind} of {self.project}"
        if self.found is None:
            return f"{what}: one of {len(self.candidates)}"
        return f"{what}: {short(self.found.name, self.kind)} {self.found.subject}".rstrip()


def short(name: str, kind: PointKind) -> str:
    """Return a name for display: hashes are abbreviated."""
    return name[:12] if kind is PointKind.COMMIT else name


def judged(report: Report, cell: str, name: str) -> JudgedCell:
    """Return a cell of a run's report, for a bisection: a cell whose code does not import is REJECTED, not FAIL.

    If the run as a whole is undecided, a cell that passed is ERROR.
    """
    reported = next((candidate for candidate in report.cells if candidate.id == cell), None)
    if reported is None:
        reason = next(candidate.reason for candidate in report.rejected if candidate.id == cell)
        return JudgedCell(id=cell, name=name, outcome=Outcome.REJECTED, reason=reason)
    failed = reported.outcome is Outcome.FAIL
    undecided = failed or reported.outcome is Outcome.ERROR
    if undecided and reported.failure is not None and reported.failure.failure_class == IMPORT_FAILURE:
        reason = f"does not import: {reported.failure.message}"
        return JudgedCell(id=cell, name=name, outcome=Outcome.REJECTED, reason=reason)
    if report.problems and reported.outcome in ACCEPTED:
        return JudgedCell(id=cell, name=name, outcome=Outcome.ERROR, reason=report.problems[0])
    findings = tuple(reported.findings[:FINDINGS]) if failed else ()
    return JudgedCell(id=cell, name=name, outcome=reported.outcome, findings=findings, reason=reported.reason)


def state_of(cells: Sequence[JudgedCell]) -> tuple[PointState, str]:
    """Return (good, bad or skipped, why skipped): one failed cell makes a point bad, only passed ones make it good."""
    if not cells:
        return PointState.SKIPPED, "no cell was judged"
    if any(cell.outcome is Outcome.FAIL for cell in cells):
        return PointState.BAD, ""
    undecided = next((cell for cell in cells if cell.outcome not in ACCEPTED), None)
    return (PointState.SKIPPED, f"{undecided.name}: {undecided.reason}") if undecided else (PointState.GOOD, "")


def git_exit_code(report: Report, planned: Collection[str]) -> int:
    """Return the exit code for `git bisect run`: good, bad or skipped. `planned`: ids of cells that were to run.

    Controls that the harness added do not count: if one fails, its cells cannot be judged.
    """
    ids = [cell.id for cell in report.cells if cell.role == "cell"]
    ids += [cell.id for cell in report.rejected if cell.id in planned]
    state, _ = state_of([judged(report, name, name) for name in ids])
    return {PointState.GOOD: EXIT_PASS, PointState.BAD: EXIT_FAIL, PointState.SKIPPED: EXIT_SKIP}[state]


_FINDINGS, _SKIPPED = 5, 5
_REASON = 300  # characters


def render_text(bisection: Bisection) -> str:
    """Return the result as lines for a terminal."""
    return "\n".join(_lines(bisection))


def _lines(bisection: Bisection) -> Iterator[str]:
    yield bisection.title
    if bisection.found is None:
        yield "  skipped points leave these candidates:"
        for change in bisection.candidates:
            yield f"    {short(change.name, bisection.kind)} {change.subject}".rstrip()
    else:
        yield from _change(bisection.found, bisection)
    point = bisection.evidence
    if point is not None:
        yield f"  at {short(point.name, bisection.kind)}, which is {point.state}:"
        findings = bisection.findings
        yield from (f"    {finding.lane.value}, {finding.check}: {finding.message}" for finding in findings[:_FINDINGS])
        if len(findings) > _FINDINGS:
            yield f"    and {len(findings) - _FINDINGS} more findings: {point.run}"
    yield from (f"  note: {note}" for note in bisection.notes)
    yield f"  {_counts(bisection)}"
    for point in bisection.skipped[:_SKIPPED]:
        yield f"    skipped {short(point.name, bisection.kind)}: {one_line(point.reason, _REASON)}"
    if len(bisection.skipped) > _SKIPPED:
        yield f"    and {len(bisection.skipped) - _SKIPPED} more, see result.json"
    yield f"  reproduce: {bisection.reproduce}"
    if bisection.nested is not None:
        yield "inside the dependency that it updates:"
        yield from (f"  {line}" for line in _lines(bisection.nested))


def _change(change: Change, bisection: Bisection) -> Iterator[str]:
    if change.author:
        yield f"  {change.author}, {change.date}"
    for parent in change.parents:
        what = "parent" if bisection.kind is PointKind.COMMIT else "previous release"
        yield f"  {what} {short(parent.name, bisection.kind)} is {parent.state}"


def _counts(bisection: Bisection) -> str:
    kept = sum(point.kept for point in bisection.points)
    parts = [f"{len(bisection.points)} {bisection.kind}s judged"]
    parts += [f"{kept} of them by an earlier bisection"] if kept else []
    parts += [f"{len(bisection.skipped)} skipped"] if bisection.skipped else []
    return ", ".join(parts)
