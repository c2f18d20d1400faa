"""report.json: the report as JSON, and back.

A report that contradicts itself was changed, and is refused: a fact that it states twice must agree, and a cell that
passed must have all without which none passes.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from harness.core.cell.axes import Axis, axes
from harness.core.cell.config import NOISE
from harness.core.errors import InputError
from harness.core.outcomes import (
    SOUND,
    KnownFailure,
    Lane,
    LaneVerdict,
    Outcome,
    nothing_passed,
    verdict_of,
)
from harness.core.run.provenance import Provenance
from harness.core.run.report import (
    EARLIER_RUNS,
    NOT_JUDGED,
    REPORT_VERSION,
    Report,
    ReportCell,
    ReportRejected,
    TimedRatio,
)
from harness.core.run.run_plan import circular
from harness.core.serialization import dumps, from_jsonable, loads, to_jsonable
from harness.core.setting import label_of
from harness.core.text import counted
from harness.core.tolerances import MAX_MEASURED, Bound
from harness.judge.stats.distance import beyond, bound_text, distance
from harness.judge.stats.paired import PairedRatio

T = TypeVar("T")
_WITH_REASON = (Outcome.ERROR, Outcome.NOT_RUN, Outcome.XFAIL, Outcome.XPASS, Outcome.FLAKY)
_JUDGED = (LaneVerdict.PASS, LaneVerdict.PARTIAL)  # nothing is wrong
# The end of an id: the layout whose rows a control has, and the hash.
_AFTER_AXES = re.compile(r"-rows-(?=(?:tp|pp|cp|dp|vpp)\d)|-[0-9a-f]{8}$")
_MAX_LEGS = {"isolation": 2, NOISE: 2}  # of a canary; the others have one
_FREE = ("documents", "args")  # axes whose values are any text
_UNNAMED = ("sp", "timed", *_FREE)  # axes that do not have a part of their own in the ids of cells


def contradiction(report: Report) -> str:
    """Return the report's first contradiction, or ''."""
    return next(_of_report(report), "")


def _of_report(report: Report) -> Iterator[str]:
    cells = {cell.id: cell for cell in report.cells}
    ids = Counter([*(cell.id for cell in report.cells), *(cell.id for cell in report.rejected)])
    yield from (f"it has cell {name} more than once" for name, count in ids.items() if count > 1)
    counted_outcomes = Counter(cell.outcome for cell in report.cells) + Counter(
        {Outcome.REJECTED: len(report.rejected)}
    )
    for outcome in Outcome:
        if report.counts.get(outcome, 0) != counted_outcomes[outcome]:
            yield f"its counts have {report.counts.get(outcome, 0)} {outcome}, its cells {counted_outcomes[outcome]}"
    if own := circular({cell.id: cell.control for cell in report.cells}):
        yield f"cell {own} is its own control"
    # Earlier versions of the harness did not record with what numbers were compared.
    recorded = any(cell.evidence.reference or cell.evidence.smallest_seen for cell in report.cells)
    for cell in report.cells:
        problems = chain(_of_verdict(cell), _of_labels(report, cell), _of_control(report, cells, cell))
        if cell.outcome in SOUND:
            problems = chain(problems, _unproven(cell), _of_curves(cell, recorded=recorded))
            problems = chain(problems, _of_control_that_proves(report, cells, cell, recorded=recorded))
        if cell.outcome in SOUND and cell.control is not None and cell.control not in ids:
            problems = chain(problems, [f"its control, cell {cell.control}, is not in the report"])
        yield from (f"cell {cell.id} is {cell.outcome}, but {problem}" for problem in problems)
    for rejected in report.rejected:
        yield from (f"cell {rejected.id} is REJECTED, but {problem}" for problem in _of_rejected(rejected))
    injected, named = {cell.fault for cell in report.cells if cell.fault}, set(report.faults)
    if injected - named or (named - injected and not report.rejected):
        yield f"its faults are {sorted(named)}, those of its cells {sorted(injected)}"
    undecided = nothing_passed(cell.outcome for cell in report.cells if cell.role == "cell")
    if undecided and not report.problems:
        yield f"it has no problems, but {undecided}"
    verdict = verdict_of(report.counts, report.problems)
    if report.verdict != verdict:
        yield f"its verdict is {report.verdict}, but of its cells {verdict} follows"


def _of_verdict(cell: ReportCell) -> Iterator[str]:
    """Compare outcome, lanes, findings, reason, known failure and attempts."""
    yield from (f"it has no lane {lane}" for lane in Lane if lane not in cell.lanes)
    failed = {lane for lane, verdict in cell.lanes.items() if verdict is LaneVerdict.FAIL}
    wrong = {finding.lane: finding.check for finding in cell.errors}
    if cell.outcome in SOUND:
        for lane in sorted(failed | wrong.keys()):
            yield f"lane {lane} failed" if lane in failed else f"check {wrong[lane]} of lane {lane} found an error"
    if cell.outcome in (Outcome.FAIL, Outcome.XFAIL) and not failed and cell.known is not KnownFailure.PASSES:
        yield "no lane failed"
    for lane in sorted(failed ^ wrong.keys()):
        yield f"lane {lane} failed without a finding" if lane in failed else f"lane {lane} has errors and did not fail"
    if cell.outcome is Outcome.PASS and cell.reason:
        yield f"it has a reason: {cell.reason}"
    if cell.attempts < (2 if cell.outcome is Outcome.FLAKY else 1):
        yield f"it had {cell.attempts} attempts"
    known = {Outcome.XFAIL: KnownFailure.EXPECTED, Outcome.XPASS: KnownFailure.PASSES}
    if cell.outcome in (*SOUND, Outcome.XFAIL) and cell.known is not known.get(cell.outcome, KnownFailure.NONE):
        yield f"of a known failure it is {cell.known or 'none'}"
    if cell.outcome in _WITH_REASON and not cell.reason:
        yield "no reason is given"


def _of_labels(report: Report, cell: ReportCell) -> Iterator[str]:
    """Compare id, axes, layout, ranks, and the command that runs the cell."""
    for name, size in to_jsonable(cell.layout).items():
        if cell.axes.get(name, size) != size:
            yield f"its layout has {name} {size}, its axes {cell.axes[name]}"
    layout = "-".join(cell.layout.name_parts())
    if not cell.id.startswith(f"{layout}-"):
        yield f"its layout is {layout}"
    yield from _of_axes(cell.id, cell.axes)
    ranks, recorded_ranks = cell.layout.world_size, [view.rank for view in cell.ranks]
    if recorded_ranks and (len(recorded_ranks) != ranks or recorded_ranks != list(range(len(recorded_ranks)))):
        yield f"it has ranks {', '.join(map(str, recorded_ranks))}, its layout {ranks}"
    else:
        for view in cell.ranks:
            if view.place != (place := cell.layout.coordinates(view.rank)):
                yield f"rank {view.rank} is at {view.place}, by its layout at {place}"
    words = cell.reproduce.split()
    of_matrix = words[:3] == ["harness", "run", report.matrix_file]  # a bisection has matrices with other ids
    if of_matrix and words[-2] == "--only" and words[-1] != cell.id and not cell.fault:
        yield f"its command runs cell {words[-1]}"


def _of_axes(cell_id: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield values of axes that the id does not have, or other ones that it has."""
    left = f"-{_AFTER_AXES.split(cell_id)[0]}-"
    for text in (str(given[name]) for name in _FREE if given.get(name)):
        left = left.replace(f"-{text}-", "-", 1)
    values = {name: given[name] for name in _patterns() if name in given}
    for name, value in values.items():
        label = "" if value in (None, "auto") else label_of(axes()[name], value)
        if label and f"-{label}-" not in left:
            yield f"its {name} is {value}, which its id does not have"
        left = left.replace(f"-{label}-", "-", 1) if label else left
    for name, value in values.items():
        pattern = _patterns()[name]
        if pattern and not axes()[name].setting.always and (other := pattern.search(left)):
            yield f"its {name} is {value}, by its id it is {other[0].strip('-')}"


@cache
def _patterns() -> dict[str, re.Pattern[str] | None]:
    """Return axis -> the parts of ids that name its values; None if those are any text."""
    return {name: _pattern(axis) for name, axis in axes().items() if name not in _UNNAMED}


def _pattern(axis: Axis) -> re.Pattern[str] | None:
    if axis.type is bool:
        values = [label_of(axis, not axis.default)]
    elif axis.setting.choices:
        values = [label for value in axis.setting.choices if (label := label_of(axis, value))]
    elif axis.setting.ge is not None:
        return re.compile(re.escape(f"-{axis.setting.labelled(axis.name, 0)}-").replace("0", r"\d+"))
    else:
        return None
    return re.compile(f"-(?:{'|'.join(map(re.escape, values))})-")


def _of_rejected(cell: ReportRejected) -> Iterator[str]:
    if not cell.rule or not cell.reason:
        yield "no rule and reason are given"
    if [(rejection.rule, rejection.reason) for rejection in cell.rejections[:1]] != [(cell.rule, cell.reason)]:
        yield f"rule {cell.rule} with its reason is not the first that rejects it"
    yield from _of_axes(cell.id, cell.axes)


def _of_control(report: Report, cells: Mapping[str, ReportCell], cell: ReportCell) -> Iterator[str]:
    control = cells.get(cell.control or "")
    if cell.role == "control" and cell.line is not None:
        yield f"its role is control, and it is from line {cell.line} of the matrix"
    if control is not None and control.group != cell.group:
        yield f"its group is {cell.group}, that of its control {control.group}"


def _of_control_that_proves(
    report: Report, cells: Mapping[str, ReportCell], cell: ReportCell, *, recorded: bool
) -> Iterator[str]:
    """Yield what the control of a cell that passed lacks."""
    reference, control = cell.evidence.reference, cells.get(cell.control or "")
    if recorded and cell.control is not None and cell.evidence.steps and not reference:
        yield "its numbers were compared with nothing"
    if reference.startswith("the control"):
        curve = cell.curve
        if control is None:
            yield f"its numbers were compared with {reference}, and its control has no evidence"
        elif any(control.lanes.get(lane) not in _JUDGED for lane in (Lane.METADATA, Lane.NUMERICS)):
            yield f"its numbers were compared with {reference}, which is {control.outcome}"
        elif (curve.control_loss, curve.control_grad_norm) != (control.curve.loss, control.curve.grad_norm):
            yield "its control has another curve"
    measures = cell.canaries.get(NOISE) == "ran" or (cell.control is None and reference == "the oracle")
    in_fp32 = cell.axes.get("dtype", "fp32") == "fp32"  # whose noise is not reported
    if cell.evidence.steps and measures and not in_fp32 and cell.id not in report.noise:
        yield "the noise of its dtype is not in the report"


def _unproven(cell: ReportCell) -> Iterator[str]:
    """Yield what the evidence of a cell lacks, without which no cell passes."""
    weight, ranks, numerics = cell.evidence, cell.layout.world_size, cell.lanes[Lane.NUMERICS]
    if cell.lanes[Lane.METADATA] is LaneVerdict.SKIP:
        yield "lane metadata was not judged"
    if cell.failure is not None:
        yield "a rank of it did not complete"
    if len(cell.ranks) != ranks or weight.records != ranks:
        yield f"it has {len(cell.ranks)} ranks and {weight.records} records, its layout {ranks}"
    for view in cell.ranks:
        if view.ended != "completed" or view.state not in ("ok", "unpacked"):
            yield f"rank {view.rank} {view.ended}, and its packed params are {view.state}"
    if not weight.legs:
        yield "no leg of it was completed"
    if (numerics is LaneVerdict.SKIP) != (weight.steps == 0) or (weight.steps and not weight.numbers):
        yield f"lane numerics is {numerics}, with {weight.steps} steps and {weight.numbers} numbers"
    if (numerics is LaneVerdict.PARTIAL) != bool(weight.not_compared):
        yield f"lane numerics is {numerics}, and not compared: {weight.not_compared or 'nothing'}"
    yield from _of_canaries(cell)
    yield from _of_times(cell)


def _of_canaries(cell: ReportCell) -> Iterator[str]:
    legs = cell.evidence.legs
    for name, state in cell.canaries.items():
        if state == "did not end":
            yield f"canary {name} {state}"
    ran = [_MAX_LEGS.get(name, 1) for name, state in cell.canaries.items() if state == "ran"]
    others = bool(cell.evidence.steps) + bool(cell.throughput.rounds_s)
    if not len(ran) + others <= legs <= sum(ran) + others + 1:  # the one more fetches batches
        canaries = counted(len(cell.canaries), "canary", "canaries")
        yield f"it completed {counted(legs, 'leg')}, and {len(ran)} of its {canaries} ran"


def _of_curves(cell: ReportCell, *, recorded: bool) -> Iterator[str]:
    """Yield curves without the steps of the evidence, or further from the reference than the lane lets pass."""
    curve, weight = cell.curve, cell.evidence
    for what, quantity, own, reference, bound in (
        ("loss", "step_loss", curve.loss, curve.control_loss, curve.loss_bound),
        ("gradient norm", "grad_norm", curve.grad_norm, curve.control_grad_norm, curve.grad_norm_bound),
    ):
        if len(own) != weight.steps:
            yield f"its curve has {len(own)} values of the {what}, and it trained {counted(weight.steps, 'step')}"
        if recorded and len(reference) != (weight.steps if weight.reference else 0):
            yield f"its curve has {len(reference)} values of its reference's {what}, compared with " + (
                weight.reference or "nothing"
            )
        for step, (ours, theirs) in enumerate(zip(own, reference)):
            most = _most(cell, step, bound, weight.smallest_seen.get(quantity))
            if most is not None and beyond(distance(ours, theirs, most), most):
                yield f"its {what} of step {step} is {ours:.6g}, its reference's {theirs:.6g}; bound {bound_text(most)}"


def _most(cell: ReportCell, step: int, bound: Bound | None, at_start: float | None) -> Bound | None:
    """Return the largest distance that lane numerics can have let pass; None: the step may not be compared."""
    is_whole = cell.lanes[Lane.NUMERICS] is LaneVerdict.PASS
    if step == 0 and at_start is not None:
        return replace(bound or Bound(value=0.0), value=at_start)
    if bound is None or not is_whole or step < 2 or bound.unit == "absolute":
        return bound if is_whole else None
    return replace(bound, value=max(bound.value, MAX_MEASURED))  # it may have grown further


def _of_times(cell: ReportCell) -> Iterator[str]:
    speed = cell.throughput
    if speed.step_times_s and speed.step_p50_s != statistics.median(speed.step_times_s):
        yield f"its median step took {speed.step_p50_s} s, its steps {speed.step_times_s}"
    for ratio in speed.ratios:
        if ratio.what != EARLIER_RUNS and ratio.verdict != (right := _verdict_of(ratio)):
            yield f"{ratio.what} is {ratio.text}, but {right} follows"
        if ratio.verdict == "slower" and NOT_JUDGED not in ratio.bound.origin:
            yield f"{ratio.what} is {ratio.text}"


def _verdict_of(ratio: TimedRatio) -> str:
    measured = PairedRatio(median=ratio.median, low=ratio.low, high=ratio.high, rounds=ratio.rounds)
    return measured.verdict(ratio.bound.value)


def render_json(report: Report) -> str:
    """Return the text of report.json."""
    return dumps(report) + "\n"


def read_report(text: str) -> Report:
    """Return the report from the text of a report.json.

    Raise InputError for another schema version or shape, or if it contradicts itself.
    """
    report = _read(Report, _value(text))
    if problem := contradiction(report):
        raise InputError(f"report.json contradicts itself: {problem}")
    return report


def read_provenance(text: str) -> Provenance:
    """Return only the provenance of a report.json; InputError as in `read_report`."""
    return _read(Provenance, _value(text).get("provenance"))


def _read(kind: type[T], value: Any) -> T:
    try:
        return from_jsonable(kind, value)
    except (TypeError, ValueError) as error:
        raise InputError(f"report.json does not hold a report: {error}") from error


def _value(text: str) -> dict[str, Any]:
    try:
        value = loads(text)
    except ValueError as error:
        raise InputError(f"report.json is not JSON: {error}") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(value, dict) or version != REPORT_VERSION:
        raise InputError(f"report.json has schema_version {version}; this harness reads {REPORT_VERSION}")
    return value
