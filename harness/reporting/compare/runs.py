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

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from harness.core.outcomes import ACCEPTED, DECIDED, SOUND, Finding, LaneVerdict, Outcome, Severity
from harness.core.run.provenance import Provenance
from harness.core.run.report import ChangeKind, LossCurve, Report, ReportCell, ReportRejected, Throughput, TimedRatio
from harness.core.text import counted
from harness.core.tolerances import SLOWER_RUN, Bound
from harness.judge.stats.distance import distance
from harness.judge.stats.paired import LEVEL, paired_ratio

Facts = Mapping[str, str]  # name of a package, project or other fact -> version, commit or value
_HASH = re.compile(r"[0-9a-f]{40}")
_SHOWN_HASH = 10


class Moved(NamedTuple):
    """Commits added and removed from one commit to another."""

    added: int
    removed: int

    @property
    def text(self) -> str:
        """Return e.g. "312 commits", "back by 2 commits", "1 commit added, 2 removed"."""
        if self.added and self.removed:
            return f"{counted(self.added, 'commit')} added, {self.removed} removed"
        return f"back by {counted(self.removed, 'commit')}" if self.removed else counted(self.added, "commit")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One fact of a stack that changed. None: the stack did not have it."""

    what: str
    before: str | None
    after: str | None
    commits: str = ""  # number between the two, if the checkout's repository is available

    @property
    def is_move(self) -> bool:
        """Return whether both are full commit hashes."""
        return all(_HASH.fullmatch(value or "") for value in (self.before, self.after))

    @property
    def text(self) -> str:
        """Return e.g. "torch 2.9.0 -> 2.9.1", "megatron-lm 5e4fc931ba..d30e165203, 312 commits"."""
        if self.before is None or self.after is None:
            return f"{self.what} {self.after} added" if self.before is None else f"{self.what} {self.before} removed"
        if self.is_move:
            ends = f"{self.what} {self.before[:_SHOWN_HASH]}..{self.after[:_SHOWN_HASH]}"
            return f"{ends}, {self.commits}" if self.commits else ends
        return f"{self.what} {self.before} -> {self.after}"


Counts = Mapping[tuple[str, str], Moved]  # (commit before, commit after) -> commits between them


def stack_facts(provenance: Provenance, stack: str) -> dict[str, str]:
    """Return the facts of a stack from a report's provenance; commits first."""
    known = provenance.software_of(stack)
    facts = dict(known.commits)
    facts |= {
        f"{checkout.project} without": ", ".join(checkout.reverted) for checkout in known.checkouts if checkout.reverted
    }
    facts |= {name: version for name, version in known.versions.items() if version != "not installed"}
    if not known.packages:  # a container: only what ranks imported is known
        facts |= {f"imported {module.name}": module.version for module in provenance.imported_by(stack)}
    facts |= {f"variable {name}": value for name, value in known.env.items()}
    named = {"python": known.python, "container": known.container}
    return facts | {name: value for name, value in named.items() if value}


def differences(before: Facts, after: Facts) -> list[Difference]:
    """Return what differs: commits first, then in the order of the facts."""
    changed = [
        Difference(what=name, before=before.get(name), after=after.get(name))
        for name in dict.fromkeys([*after, *before])
        if before.get(name) != after.get(name)
    ]
    return sorted(changed, key=lambda difference: not difference.is_move)


def with_counts(items: Iterable[Difference], counts: Counts) -> list[Difference]:
    """Return the differences with the number of commits between, where known."""
    moved = ((difference, counts.get((difference.before or "", difference.after or ""))) for difference in items)
    return [replace(difference, commits=between.text) if between else difference for difference, between in moved]


def differences_text(items: Iterable[Difference], most: int = 6) -> str:
    """Return several differences on one line, or ''."""
    texts = [difference.text for difference in items]
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return "; ".join([*texts[:most], *more])


Cell = ReportCell | ReportRejected


# Pairs the cells of two runs, and classifies how each changed.
#
# A cell is the same in both runs if its id is (layout, data path, model, documents, training, stack). The remaining
# cells are matched by name without the hash, then by all axes but the stack, if exactly one cell on each side fits.
@dataclass(frozen=True, kw_only=True)
class Pair:
    """A cell in two runs; None for a run that does not have it."""

    before: Cell | None
    after: Cell | None
    matched: str = ""  # how, if not by id


def pairs(before: Report, after: Report) -> list[Pair]:
    """Return every cell of either run once, in the later run's order; cells of the earlier run alone come last."""
    ways: tuple[tuple[str, Callable[[Cell], Any]], ...] = (
        ("", lambda cell: cell.id),
        ("by name: the configuration differs", lambda cell: cell.id.rpartition("-")[0]),
        ("by name: a fault was injected", _sound_name),
        ("by axes: the stack has another name", lambda cell: _without_stack(cell.axes)),
    )
    old: list[Cell] = [*before.cells, *before.rejected]
    later: list[Cell] = [*after.cells, *after.rejected]
    matches: dict[str, Pair] = {}  # by the id in the later run
    new = later
    for matched, key in ways:  # each pairs what the stricter ones before it have left over
        earlier, ours = _unique(old, key), _unique(new, key)
        for name in earlier.keys() & ours.keys():
            matches[ours[name].id] = Pair(before=earlier[name], after=ours[name], matched=matched)
        taken = {pair.before.id for pair in matches.values() if pair.before}
        old = [cell for cell in old if cell.id not in taken]
        new = [cell for cell in new if cell.id not in matches]
    return [
        *(matches.get(cell.id, Pair(before=None, after=cell)) for cell in later),
        *(Pair(before=cell, after=None) for cell in old),
    ]


def _unique(cells: Iterable[Cell], key: Callable[[Cell], Any]) -> dict[Any, Cell]:
    """Return cells by key, without those that share their key."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return {name: members[0] for name, members in groups.items() if len(members) == 1}


def _sound_name(cell: Cell) -> str:
    """Return the name without an injected fault."""
    name = cell.id.rpartition("-")[0]
    return name.removesuffix(f"-{cell.fault}") if isinstance(cell, ReportCell) and cell.fault else name


def _without_stack(axes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in axes.items() if name != "stack"))


def change(before: Outcome | None, after: Outcome | None) -> ChangeKind:
    """Return the change between the outcomes of a cell in the earlier and the later run; None: not in that run."""
    if before is None or after is None:
        return ChangeKind.NEW if before is None else ChangeKind.GONE
    if after is Outcome.FAIL:
        if before is Outcome.FAIL:
            return ChangeKind.STILL_FAILING
        return ChangeKind.NEWLY_FAILING if before in ACCEPTED else ChangeKind.UNJUDGED
    if after in (Outcome.REJECTED, Outcome.NOT_RUN):
        return ChangeKind.UNCHANGED if before is after else ChangeKind.NO_LONGER_RUN
    if after is Outcome.XFAIL:
        return ChangeKind.UNCHANGED if before is Outcome.XFAIL else ChangeKind.KNOWN_FAILURE
    named = {Outcome.ERROR: ChangeKind.UNDECIDED, Outcome.FLAKY: ChangeKind.FLAKY}
    fixed = ChangeKind.FIXED if before in (Outcome.FAIL, Outcome.XFAIL) else ChangeKind.UNCHANGED
    return named.get(after) or fixed


def outcome_of(cell: Cell | None) -> Outcome | None:
    """Return the outcome of a cell; None where the run does not have it."""
    if cell is None:
        return None
    return cell.outcome if isinstance(cell, ReportCell) else Outcome.REJECTED


Compared = Literal["loss", "gradient norm"]
_UNDECIDED = "undecided"
_ENOUGH = math.ceil(math.log2(1 / LEVEL))  # rounds: with fewer, a sign test cannot reach the level
_RELATIVE = Bound(value=0.0)


# Numbers of one cell in two runs: drift of loss and gradient norm, and times that became slower or faster.
#
# Two runs are apart in time, so their times are compared with care: ratios that each run measured by itself, round by
# round, hold whatever the machine did; times in seconds count only on the same hardware, and wall clock times only on
# GPUs, since a CPU is shared.
@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a quantity of the training steps moved from one run to the other; a NaN in one run alone is infinite."""

    what: Compared
    steps: int  # number that both runs have
    largest: float  # relative difference, absolute where the earlier value is zero or the bound says so
    step: int  # where it is largest
    first: int | None  # first step that differs at all; None: all are equal, bit for bit
    lengths: tuple[int, int]  # steps before, steps after
    bound: Bound | None  # by which the cell is judged; None: not judged

    @property
    def equal(self) -> bool:
        """Return whether both runs have the same steps with the same values, bit for bit."""
        return self.first is None and self.lengths[0] == self.lengths[1]

    @property
    def beyond(self) -> bool:
        """Return whether it is judged, and drifted beyond its bound."""
        return self.bound is not None and self.largest > self.bound.value

    @property
    def brief(self) -> str:
        """Return that it is equal, or from which step on it differs and by how much at most."""
        other = f"; {self.lengths[0]} steps before, {self.lengths[1]} after" if len(set(self.lengths)) > 1 else ""
        if self.first is None:
            return f"equal in {counted(self.steps, 'step')}{other}"
        bound = f", bound {self.bound.value:.3g}" if self.bound else ""
        return f"differs from step {self.first} on, by {self.largest:.3g} at most (step {self.step}{bound}){other}"

    @property
    def text(self) -> str:
        """Return the quantity with its drift."""
        return f"{self.what}: {self.brief}"


def drifts(before: ReportCell, after: ReportCell, bounds: LossCurve) -> list[Drift]:
    """Return drifts of loss and gradient norm, if both runs have steps. `bounds`: a curve with the cell's bounds."""
    pairs: tuple[tuple[Compared, list[float], list[float], Bound | None], ...] = (
        ("loss", before.curve.loss, after.curve.loss, bounds.loss_bound),
        ("gradient norm", before.curve.grad_norm, after.curve.grad_norm, bounds.grad_norm_bound),
    )
    return [_drift(what, old, new, bound) for what, old, new, bound in pairs if old and new]


def _drift(what: Compared, before: Sequence[float], after: Sequence[float], bound: Bound | None) -> Drift:
    far = [_far(new, old, bound or _RELATIVE) for old, new in zip(before, after)]
    largest = max(far)
    return Drift(
        what=what,
        steps=len(far),
        largest=largest,
        step=far.index(largest),
        first=next((step for step, difference in enumerate(far) if difference), None),
        lengths=(len(before), len(after)),
        bound=bound,
    )


def _far(after: float, before: float, bound: Bound) -> float:
    """Return the distance of two values in either direction, since a drift has no good one."""
    if after == before or (math.isnan(after) and math.isnan(before)):
        return 0.0
    far = distance(after, before, Bound(value=bound.value, unit=bound.unit))
    return math.inf if math.isnan(far) else far


@dataclass(frozen=True, kw_only=True)
class TimeChange:
    """Ratio of a time to that in the earlier run, with its confidence interval."""

    ratio: TimedRatio
    judged: bool  # whether slower than the bound is a regression
    why_not: str = ""  # if not judged

    @property
    def slower(self) -> bool:
        """Return whether it is judged, and became slower."""
        return self.judged and self.ratio.verdict == "slower"

    @property
    def text(self) -> str:
        """Return the ratio, and why it is not judged if it is not."""
        return f"{self.ratio.what}: {self.ratio.text}" + (f" ({self.why_not})" if self.why_not else "")


def time_changes(
    before: Throughput, after: Throughput, *, why_not: str, on_cpu: bool, bound: Bound
) -> list[TimeChange]:
    """Return changes of all that both runs timed. `why_not`: why seconds cannot be compared; empty: they can."""
    changes = [TimeChange(ratio=ratio, judged=True) for ratio in _ratios(before, after, bound)]
    rounds = [
        (f"timing leg, {load}", times, after.rounds_s[load], why_not)
        for load, times in before.rounds_s.items()
        if load in after.rounds_s
    ]
    shared = why_not or ("wall clock of a shared CPU: shown, not judged" if on_cpu else "")
    steps = [("training step", before.step_times_s, after.step_times_s, shared)]
    for what, old, new, reason in [*rounds, *steps]:
        change = _times(what, old, new, bound)
        if change is not None:
            changes.append(TimeChange(ratio=change, judged=not reason, why_not=reason))
    return changes


def _ratios(before: Throughput, after: Throughput, bound: Bound) -> Iterator[TimedRatio]:
    """Yield changes of ratios that both runs measured, with intervals from the ends of both: wide, not wrong."""
    known = {ratio.what: ratio for ratio in before.ratios}
    for new in after.ratios:
        old = known.get(new.what)
        if old is not None and old.median > 0:
            yield _timed(
                new.what,
                new.median / old.median,
                new.low / old.high if old.high else 0.0,
                new.high / old.low if old.low else math.inf,
                min(old.rounds, new.rounds),
                bound,
            )


def _times(what: str, before: Sequence[float], after: Sequence[float], bound: Bound) -> TimedRatio | None:
    """Return the ratio of paired times: step k trains on the same documents in both runs."""
    ratio = paired_ratio(after, before) if len(after) == len(before) else None
    return _timed(what, ratio.median, ratio.low, ratio.high, ratio.rounds, bound) if ratio else None


def _timed(what: str, median: float, low: float, high: float, rounds: int, bound: Bound) -> TimedRatio:
    verdict = "slower" if low > bound.value else "faster" if high < 1 / bound.value else "no difference"
    if verdict == "no difference" and rounds < _ENOUGH:
        verdict = f"{_UNDECIDED}: fewer than {_ENOUGH} rounds"
    return TimedRatio(what=what, median=median, low=low, high=high, rounds=rounds, bound=bound, verdict=verdict)


COMPARISON_VERSION = 1  # schema_version of the JSON of a comparison
REGRESSION: Final = "regression"
UNDECIDED: Final = "undecided"
NO_REGRESSION: Final = "no regression"
_MAX_LOST = 5  # cells that are named


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
    """How one cell changed from the earlier to the later run."""

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
    """How a stack changed from the earlier to the later run."""

    stack: str  # "old -> new" where cells were matched across stacks
    differences: list[Difference]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs, cell by cell."""

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
        """Return the cells that became worse."""
        return [cell for cell in self.cells if cell.regressions]


def compare_runs(before: Report, after: Report, *, slower: Bound = SLOWER_RUN) -> Comparison:
    """Compare two runs. `slower`: the factor above which a time, or a ratio of times, counts as slower."""
    sides = _side(before), _side(after)
    why_not = "" if sides[0].hardware == sides[1].hardware else "different hardware"
    on_cpu = "cpu" in sides[1].hardware["devices"]
    matched = pairs(before, after)
    used = dict.fromkeys(
        (old.stack, new.stack)
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
            return _outcome_change(pair, chosen=bool(after.provenance.chosen))
        names = old.stack, new.stack
        times = time_changes(old.throughput, new.throughput, why_not=why_not, on_cpu=on_cpu, bound=slower)
        same = not pair.matched and not stacks[names]
        return _cell_change(old, new, pair.matched, drifts(old, new, bounds(new)), times, judge_drift=same)

    cells = [change_of(pair) for pair in matched]
    cells.sort(key=lambda cell: (not cell.regressions, list(ChangeKind).index(cell.change)))
    change_counts = Counter(cell.change for cell in cells)
    return Comparison(
        before=sides[0],
        after=sides[1],
        cells=cells,
        stacks=[
            StackChange(stack=old if old == new else f"{old} -> {new}", differences=changed)
            for (old, new), changed in stacks.items()
        ],
        counts={change: change_counts[change] for change in ChangeKind if change_counts[change]},
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
    """Return notes on cells that the later run no longer judges, and on runs that cannot be compared at all."""
    lost = [cell for cell in cells if _is_lost(cell)]
    notes = []
    if not any(cell.before in DECIDED and cell.after in DECIDED for cell in cells):
        notes.append("nothing was compared: no cell was judged in both runs")
    if lost:
        now = Counter(cell.after.value if cell.after else "gone" for cell in lost)
        counts = ", ".join(f"{count} {name}" for name, count in sorted(now.items()))
        names = ", ".join(cell.id for cell in lost[:_MAX_LOST])
        more = f" and {len(lost) - _MAX_LOST} more" if len(lost) > _MAX_LOST else ""
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
    """Return the comparison with the number of commits between those that differ, where known."""
    stacks = [replace(stack, differences=with_counts(stack.differences, counts)) for stack in comparison.stacks]
    return replace(comparison, stacks=stacks)


def _side(report: Report) -> Side:
    known = report.provenance
    return Side(
        run_id=report.run_id,
        matrix=report.matrix,
        verdict=report.verdict,
        started=known.started,
        harness=f"{known.harness} {known.harness_commit}",
        hardware={
            "devices": ", ".join(known.devices) or "unknown",
            "cores": str(known.cores or "unknown"),
            "system": known.system,
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
    """Return how cells were matched that are not the same in both runs: "unchanged" says little of them."""
    ways = Counter(cell.matched for cell in cells if cell.matched)
    return [f"{counted(count, 'cell')} matched {way}" for way, count in ways.items()]


def _bounds(report: Report) -> Callable[[ReportCell], LossCurve]:
    """Return a finder of the curve with a cell's bounds: its own or, for a control, a cell's compared with it."""
    compared = {cell.control: cell.curve for cell in report.cells if cell.control and cell.curve.loss_bound}
    return lambda cell: cell.curve if cell.curve.loss_bound else compared.get(cell.id, cell.curve)


def _outcome_change(pair: Pair, *, chosen: bool) -> CellChange:
    """Return the change of a cell that a run did not train. `chosen`: the later run was to train only some cells."""
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
        stack=cell.stack,
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
        why += [time.text for time in times if time.slower]
        why += [f"in the same stack, {drift.text}" for drift in moved if judge_drift and drift.beyond]
    return CellChange(
        id=new.id,
        change=what,
        before=old.outcome,
        after=new.outcome,
        stack=new.stack,
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
    """Return errors whose lane, check and place the earlier run did not have."""
    known = {_key(finding) for finding in before}
    return [finding for finding in after if finding.severity is Severity.ERROR and _key(finding) not in known]


def _key(finding: Finding) -> tuple[Any, ...]:
    place = {name: str(value) for name, value in finding.where.items() if not isinstance(value, (list, dict, float))}
    return finding.lane, finding.check, tuple(sorted(place.items()))
