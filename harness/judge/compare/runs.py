"""Compares two runs: how each cell changed, how far its numbers drifted, what became slower, and how the stacks
differ. Pure: reports in, a comparison out.

A regression is one of:

- a cell that passed and fails, or a lane that passed and fails in a cell that failed already;
- a cell that passed and is now rejected, or is gone although the later run chose no cells (--only, -k);
- a time, or a ratio of times, of a cell that passes, with its whole interval beyond the bound;
- numbers of a cell that passes in the same stack, drifted beyond the bound by which the cell is judged.

Numbers of another stack are shown, not judged here: each run judges them against its own control.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from harness.core.outcomes import ACCEPTED, DECIDED, SOUND, Finding, LaneVerdict, Outcome, Severity
from harness.core.text import counted
from harness.core.tolerances import SLOWER_RUN, Bound
from harness.judge.compare.cell_pairs import (
    Pair,
    change,
    outcome_of,
    pairs,
    stack_of,
)
from harness.judge.compare.numbers import Drift, TimeChange, drifts, time_changes
from harness.judge.compare.stack_changes import Counts, Difference, differences, stack_facts, with_counts
from harness.judge.report.model import ChangeKind, LossCurve, Report, ReportCell

COMPARISON_VERSION = 1  # schema_version of the JSON of a comparison
REGRESSION: Final = "regression"
UNDECIDED: Final = "undecided"
NO_REGRESSION: Final = "no regression"
_MOST_LOST = 5  # cells that are named


ComparisonVerdict = Literal["regression", "undecided", "no regression"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs."""

    run_id: str
    matrix: str
    verdict: str
    started: str
    harness: str  # version and commit
    hardware: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class CellChange:
    id: str  # of the later run, where it has the cell
    change: ChangeKind
    before: Outcome | None  # None: the run does not have the cell
    after: Outcome | None
    stack: str
    matched: str = ""  # how, if not by id
    findings: list[Finding] = field(default_factory=list)  # errors that the earlier run did not have
    lanes: list[str] = field(default_factory=list)  # that passed before and fail now
    drifts: list[Drift] = field(default_factory=list)
    times: list[TimeChange] = field(default_factory=list)
    rates: tuple[float | None, float | None] = (None, None)  # real tokens/s per rank, before and after
    regressions: list[str] = field(default_factory=list)  # why it counts as one
    reason: str = ""  # of the later run
    reproduce: str = ""


@dataclass(frozen=True, kw_only=True)
class StackChange:
    stack: str  # "old -> new" where cells were matched across stacks
    differences: list[Difference]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    before: Side
    after: Side
    cells: list[CellChange]
    stacks: list[StackChange]  # every stack that a cell of both runs uses; no differences: identical
    counts: dict[str, int]  # of the changes
    verdict: ComparisonVerdict  # undecided: no cell was judged in both runs
    notes: list[str]
    lost: list[str] = field(default_factory=list)  # cells that the earlier run judged and the later one does not
    schema_version: int = COMPARISON_VERSION

    @property
    def regressions(self) -> list[CellChange]:
        return [cell for cell in self.cells if cell.regressions]


def compare_runs(before: Report, after: Report, *, slower: Bound = SLOWER_RUN) -> Comparison:
    """`slower`: the factor above which a time, or a ratio of times, counts as slower."""
    sides = _side(before), _side(after)
    why_not = "" if sides[0].hardware == sides[1].hardware else "different hardware"
    on_cpu = "cpu" in sides[1].hardware["devices"]
    matched = pairs(before, after)
    used = dict.fromkeys(
        (stack_of(old), stack_of(new))
        for old, new in ((pair.before, pair.after) for pair in matched)
        if isinstance(old, ReportCell) and isinstance(new, ReportCell)
    )
    stacks = {
        (old, new): differences(stack_facts(before.provenance, old), stack_facts(after.provenance, new))
        for old, new in used
    }
    bounds = _bounds(after)

    def change_of(pair: Pair) -> CellChange:
        old, new = pair.before, pair.after
        if not (isinstance(old, ReportCell) and isinstance(new, ReportCell)):
            return _outcome_change(pair, chosen=bool(after.provenance.get("chosen")))
        names = stack_of(old), stack_of(new)
        times = time_changes(old.throughput, new.throughput, why_not=why_not, on_cpu=on_cpu, bound=slower)
        same = not pair.matched and not stacks[names]
        return _cell_change(old, new, pair.matched, drifts(old, new, bounds(new)), times, judge_drift=same)

    cells = [change_of(pair) for pair in matched]
    cells.sort(key=lambda cell: (not cell.regressions, list(ChangeKind).index(cell.change)))
    seen = Counter(cell.change for cell in cells)
    return Comparison(
        before=sides[0],
        after=sides[1],
        cells=cells,
        stacks=[
            StackChange(stack=old if old == new else f"{old} -> {new}", differences=found)
            for (old, new), found in stacks.items()
        ],
        counts={change: seen[change] for change in ChangeKind if seen[change]},
        verdict=_verdict(cells),
        notes=[*_coverage(cells), *_order(sides), *_notes(before, after, sides), *_matched(cells)],
        lost=[cell.id for cell in cells if _is_lost(cell)],
    )


def _verdict(cells: Sequence[CellChange]) -> ComparisonVerdict:
    if not any(cell.before in DECIDED and cell.after in DECIDED for cell in cells):
        return UNDECIDED
    return REGRESSION if any(cell.regressions for cell in cells) else NO_REGRESSION


def _is_lost(cell: CellChange) -> bool:
    return cell.before in DECIDED and cell.after not in DECIDED


def _coverage(cells: Sequence[CellChange]) -> list[str]:
    """Notes on cells that the later run no longer judges, and on runs that cannot be compared at all."""
    lost = [cell for cell in cells if _is_lost(cell)]
    notes = []
    if not any(cell.before in DECIDED and cell.after in DECIDED for cell in cells):
        notes.append("nothing was compared: no cell was judged in both runs")
    if lost:
        now = Counter(cell.after.value if cell.after else "gone" for cell in lost)
        counts = ", ".join(f"{count} {name}" for name, count in sorted(now.items()))
        names = ", ".join(cell.id for cell in lost[:_MOST_LOST])
        more = f" and {len(lost) - _MOST_LOST} more" if len(lost) > _MOST_LOST else ""
        notes.append(f"coverage lost: cells judged before but no longer: {counts} ({names}{more})")
    return notes


def _order(sides: tuple[Side, Side]) -> list[str]:
    try:
        started = [datetime.fromisoformat(side.started.replace("Z", "+00:00")) for side in sides]
        if started[0] <= started[1]:
            return []
    except (ValueError, TypeError):  # no date, or only one with a time zone
        return []
    return ["the run given first is the later one, so new and fixed are reversed: swap the two"]


def with_commits(comparison: Comparison, counts: Counts) -> Comparison:
    """The comparison with the number of commits between those that differ, where known."""
    stacks = [replace(stack, differences=with_counts(stack.differences, counts)) for stack in comparison.stacks]
    return replace(comparison, stacks=stacks)


def _side(report: Report) -> Side:
    known = report.provenance
    return Side(
        run_id=report.run_id,
        matrix=report.matrix,
        verdict=report.verdict,
        started=str(known.get("started", "")),
        harness=" ".join(str(known[key]) for key in ("harness", "harness_commit") if key in known),
        hardware={
            "devices": ", ".join(map(str, known.get("devices", []))) or "unknown",
            "cores": str(known.get("cores", "unknown")),
            "system": str(known.get("system", "unknown")),
        },
    )


def _notes(before: Report, after: Report, sides: tuple[Side, Side]) -> list[str]:
    notes = []
    for report in (before, after):
        if report.faults:
            notes.append(f"{report.run_id}: {report.faults_text}")
    if before.matrix != after.matrix:
        notes.append(f"different matrices: {before.matrix} and {after.matrix}")
    for what, old in sides[0].hardware.items():
        if old != sides[1].hardware[what]:
            notes.append(f"different hardware, so seconds are not judged: {what} {old} -> {sides[1].hardware[what]}")
    if sides[0].harness != sides[1].harness:
        notes.append(f"different harness: {sides[0].harness} -> {sides[1].harness}")
    return notes


def _matched(cells: Sequence[CellChange]) -> list[str]:
    """How cells were matched that are not the same in both runs, so that "unchanged" says little of them."""
    ways = Counter(cell.matched for cell in cells if cell.matched)
    return [f"{counted(count, 'cell')} matched {way}" for way, count in ways.items()]


def _bounds(report: Report) -> Callable[[ReportCell], LossCurve]:
    """Finds the curve with a cell's bounds: its own or, for a control, that of a cell compared with it."""
    compared = {cell.control: cell.curve for cell in report.cells if cell.control and cell.curve.loss_bound}
    return lambda cell: cell.curve if cell.curve.loss_bound else compared.get(cell.id, cell.curve)


def _outcome_change(pair: Pair, *, chosen: bool) -> CellChange:
    """The change of a cell that one of the runs did not train. `chosen`: the later run was to train only some cells."""
    old, new = pair.before, pair.after
    cell = new or old
    assert cell is not None
    before, after = outcome_of(old), outcome_of(new)
    what = change(before, after)
    lost = before in ACCEPTED and (after is Outcome.REJECTED or (after is None and not chosen))
    return CellChange(
        id=cell.id,
        change=what,
        before=before,
        after=after,
        stack=stack_of(cell),
        matched=pair.matched,
        findings=_new_findings((), new.findings) if isinstance(new, ReportCell) else [],
        regressions=[what.value] if lost else [],
        reason=new.reason if new else "",
        reproduce=new.reproduce if isinstance(new, ReportCell) else "",
    )


def _cell_change(
    old: ReportCell,
    new: ReportCell,
    matched: str,
    moved: list[Drift],
    times: list[TimeChange],
    *,
    judge_drift: bool,
) -> CellChange:
    lanes = [
        lane.value
        for lane, verdict in new.lanes.items()
        if verdict is LaneVerdict.FAIL and old.lanes.get(lane) in (LaneVerdict.PASS, LaneVerdict.PARTIAL)
    ]
    what = change(old.outcome, new.outcome)
    why = [what.value] if what == ChangeKind.NEWLY_FAILING else []
    if what == ChangeKind.STILL_FAILING:
        why += [f"{lane} passed and fails" for lane in lanes]
    if old.outcome in SOUND and new.outcome in SOUND:
        why += [item.text for item in times if item.slower]
        why += [f"in the same stack, {item.text}" for item in moved if judge_drift and item.beyond]
    return CellChange(
        id=new.id,
        change=what,
        before=old.outcome,
        after=new.outcome,
        stack=stack_of(new),
        matched=matched,
        findings=_new_findings(old.findings, new.findings),
        lanes=lanes,
        drifts=moved,
        times=times,
        rates=(old.throughput.real_tokens_per_s, new.throughput.real_tokens_per_s),
        regressions=why,
        reason=new.reason,
        reproduce=new.reproduce,
    )


def _new_findings(before: Sequence[Finding], after: Sequence[Finding]) -> list[Finding]:
    """Errors whose lane, check and place the earlier run did not have."""
    known = {_key(finding) for finding in before}
    return [item for item in after if item.severity is Severity.ERROR and _key(item) not in known]


def _key(finding: Finding) -> tuple[Any, ...]:
    place = {name: str(value) for name, value in finding.where.items() if not isinstance(value, (list, dict, float))}
    return finding.lane, finding.check, tuple(sorted(place.items()))
