"""report.json: the report as JSON, and back."""

from __future__ import annotations

from collections import Counter
from typing import Any

from harness.core.errors import InputError
from harness.core.outcomes import SOUND, KnownFailure, Lane, LaneVerdict, Outcome, Severity, verdict_of
from harness.core.serialization import dumps, from_jsonable, loads, to_jsonable
from harness.judge.report.model import REPORT_VERSION, Report, ReportCell
from harness.judge.report.stack_versions import check


def render_json(report: Report) -> str:
    return dumps(report) + "\n"


def read_report(text: str) -> Report:
    """The report from the text of a report.json; InputError for another schema version or shape, or if it
    contradicts itself."""
    value = _value(text)
    try:
        report = from_jsonable(Report, value)
        check(report.provenance)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"report.json does not hold a report: {error}") from error
    if problem := _contradiction(report):
        raise InputError(f"report.json contradicts itself: {problem}")
    return report


def _contradiction(report: Report) -> str:
    """What of a report does not follow from the rest of it, though the harness derives it; empty if all does."""
    ids = [*(cell.id for cell in report.cells), *(cell.id for cell in report.rejected)]
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        return f"it has cell {twice[0]} more than once"
    found = Counter(cell.outcome for cell in report.cells) + Counter({Outcome.REJECTED: len(report.rejected)})
    for outcome in Outcome:
        if report.counts.get(outcome, 0) != found[outcome]:
            return f"its counts have {report.counts.get(outcome, 0)} {outcome}, its cells {found[outcome]}"
    for cell in report.cells:
        problem = _contradiction_of(cell) or (_unproven(cell) if cell.outcome in SOUND else "") or _mislabelled(cell)
        if problem:
            return f"cell {cell.id} is {cell.outcome}, but {problem}"
        if cell.outcome in SOUND and cell.control is not None and cell.control not in ids:
            return f"cell {cell.id} is {cell.outcome}, but its control, cell {cell.control}, is not in the report"
    injected, named = {cell.fault for cell in report.cells if cell.fault}, set(report.faults)
    if injected - named or (named - injected and not report.rejected):
        return f"its faults are {sorted(named)}, those of its cells {sorted(injected)}"
    verdict = verdict_of(report.counts, report.problems)
    return "" if report.verdict == verdict else f"its verdict is {report.verdict}, but of its cells {verdict} follows"


def _contradiction_of(cell: ReportCell) -> str:
    if absent := [lane.value for lane in Lane if lane not in cell.lanes]:
        return f"it has no lane {absent[0]}"
    failed = {lane for lane, verdict in cell.lanes.items() if verdict is LaneVerdict.FAIL}
    wrong = {finding.lane: finding.check for finding in cell.findings if finding.severity is Severity.ERROR}
    if cell.outcome in SOUND and failed | wrong.keys():
        lane = sorted(failed | wrong.keys())[0]
        return f"lane {lane} failed" if lane in failed else f"check {wrong[lane]} of lane {lane} found an error"
    if cell.outcome in SOUND and cell.lanes[Lane.METADATA] is LaneVerdict.SKIP:
        return "lane metadata was not judged"
    if cell.outcome in SOUND and cell.failure is not None:
        return "a rank of it did not complete"
    if cell.outcome in (Outcome.FAIL, Outcome.XFAIL) and not failed and cell.known is not KnownFailure.PASSES:
        return "no lane failed"
    for lane in sorted(failed ^ wrong.keys()):
        return f"lane {lane} failed without a finding" if lane in failed else f"lane {lane} has errors and did not fail"
    return ""


def _unproven(cell: ReportCell) -> str:
    """What the evidence of a cell lacks, without which no cell passes."""
    weight, ranks, numerics = cell.evidence, cell.layout.world_size, cell.lanes[Lane.NUMERICS]
    if [view.rank for view in cell.ranks] != list(range(ranks)) or weight.records != ranks:
        return f"it has {len(cell.ranks)} ranks and {weight.records} records, its layout {ranks}"
    for view in cell.ranks:
        if view.ended != "completed" or view.state not in ("ok", "unpacked"):
            return f"rank {view.rank} {view.ended}, and its packed params are {view.state}"
    if not weight.legs:
        return "no leg of it was completed"
    if (numerics is LaneVerdict.SKIP) != (weight.steps == 0) or (weight.steps and not weight.numbers):
        return f"lane numerics is {numerics}, with {weight.steps} steps and {weight.numbers} numbers"
    if (numerics is LaneVerdict.PARTIAL) != bool(weight.not_compared):
        return f"lane numerics is {numerics}, and not compared: {weight.not_compared or 'nothing'}"
    return ""


def _mislabelled(cell: ReportCell) -> str:
    """What of a cell's labels does not fit the others."""
    for name, size in to_jsonable(cell.layout).items():
        if cell.axes.get(name, size) != size:
            return f"its layout has {name} {size}, its axes {cell.axes[name]}"
    words = cell.reproduce.split()
    if words[:2] == ["harness", "run"] and words[-2] == "--only" and words[-1] != cell.id and not cell.fault:
        return f"its command runs cell {words[-1]}"
    if cell.attempts < (2 if cell.outcome is Outcome.FLAKY else 1):
        return f"it had {cell.attempts} attempts"
    known = {Outcome.XFAIL: KnownFailure.EXPECTED, Outcome.XPASS: KnownFailure.PASSES}
    is_known = cell.known is known.get(cell.outcome, KnownFailure.NONE)
    if cell.outcome in (*SOUND, Outcome.XFAIL) and not is_known:
        return f"of a known failure it is {cell.known or 'none'}"
    return ""


def read_provenance(text: str) -> dict[str, Any]:
    """Only the provenance of a report.json; InputError as in `read_report`."""
    provenance: Any = _value(text).get("provenance", {})
    try:
        check(provenance)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"report.json does not hold a report: {error}") from error
    return dict(provenance)


def _value(text: str) -> dict[str, Any]:
    try:
        value = loads(text)
    except ValueError as error:
        raise InputError(f"report.json is not JSON: {error}") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(value, dict) or version != REPORT_VERSION:
        raise InputError(f"report.json has schema_version {version}; this harness reads {REPORT_VERSION}")
    return value
