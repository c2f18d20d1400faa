"""The verdict on one cell: checks -> lanes -> outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from harness.core.outcomes import SOUND, Finding, KnownFailure, Lane, LaneVerdict, Outcome, Severity
from harness.core.run.run_plan import XFail
from harness.judge.built_check import built_problem
from harness.judge.checks.table import ADDED, CHECKS
from harness.judge.complete import (
    base_problem,
    incomplete,
    other_device,
    rejection_problem,
    result_problem,
    uncompared,
    untrusted,
)
from harness.judge.diagnosis.fault_classes import led_by_root
from harness.judge.diagnosis.known_issues import with_known
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.endings import TRAINED
from harness.judge.evidence.timings import against_history
from harness.judge.failures.classification import cause_of
from harness.judge.import_check import import_problem
from harness.judge.weight import not_compared


class CellVerdict(NamedTuple):
    """The outcome of a cell, and what it follows from."""

    outcome: Outcome
    lanes: dict[Lane, LaneVerdict]
    findings: list[Finding]  # most informative first
    reason: str  # of ERROR, NOT_RUN, REJECTED, XFAIL, XPASS, FLAKY, and of an xfail that does not apply; else empty
    usable: bool = True  # False: the records are absent or cannot be trusted
    known: KnownFailure = KnownFailure.NONE
    untimed: bool = False  # ERROR only because it could not be timed, or not against its base


def judge_cell(evidence: CellEvidence, *, today: str, control: CellVerdict | None = None) -> CellVerdict:
    """Judge one cell. `today` is an ISO date, for the expiry of xfail entries.

    `control` is the verdict on the cell's control if the caller has it; otherwise the control is judged here.
    """
    verdict = _with_earlier(evidence, _judge_attempt(evidence, today, control), today, control)
    return _with_xfail(evidence.cell.xfail, verdict, today) if evidence.cell.xfail else verdict


def _judge_attempt(evidence: CellEvidence, today: str, control: CellVerdict | None) -> CellVerdict:
    """Return the verdict on one attempt alone, before the xfail entry, and on how it continued from a checkpoint."""
    saved = _judge_part(evidence, today, control)
    if not evidence.cell.config.resume or saved.outcome not in SOUND:
        return saved
    if evidence.resumed is None:
        return saved._replace(
            outcome=Outcome.ERROR, lanes=_without_passes(saved.lanes), reason="it did not continue from its checkpoint"
        )
    return _after_resume(saved, _judge_part(evidence.resumed, today, control))


def _after_resume(saved: CellVerdict, resumed: CellVerdict) -> CellVerdict:
    """Return the verdict on both parts, the first of which passed."""
    later = [
        replace(finding, message=f"resumed: {finding.message}", where={**finding.where, "part": "resumed"})
        for finding in resumed.findings
    ]
    if resumed.outcome in SOUND:
        return saved._replace(findings=[*saved.findings, *later])
    lanes = _without_passes(resumed.lanes) if resumed.outcome is Outcome.ERROR else resumed.lanes
    reason = f"resumed: {resumed.reason}" if resumed.reason else ""
    return resumed._replace(lanes=lanes, findings=[*later, *saved.findings], reason=reason)


def _judge_part(evidence: CellEvidence, today: str, control: CellVerdict | None) -> CellVerdict:
    """Return the verdict on the ranks of one part of an attempt."""
    result = evidence.result
    if result is None and evidence.stopped:
        return CellVerdict(Outcome.NOT_RUN, _skipped(), [], evidence.stopped, usable=False)
    if result is not None and evidence.rejected:
        if problem := rejection_problem(evidence):
            return undecided(problem)
        rejection = result.rejection
        assert rejection is not None
        return CellVerdict(Outcome.REJECTED, _skipped(), [], f"{rejection.rule}: {rejection.reason}", usable=False)
    problem = untrusted(evidence) or import_problem(evidence.stack, evidence.records) or built_problem(evidence)
    if problem:
        return undecided(problem)
    no_control = evidence.tolerances.too_noisy or _control_problem(evidence, today, control)
    if no_control:
        # No check may read a control that did not pass, nor a bound that it measured.
        bounds = evidence.tolerances if evidence.tolerances.too_noisy or evidence.by_oracle else evidence.later
        evidence = replace(evidence, control=None, tolerances=bounds)
    if evidence.by_oracle and not evidence.tolerances.too_noisy:
        no_control = ""
    no_base = base_problem(evidence)
    if no_base:
        evidence = replace(evidence, base=None)
    findings = with_known(
        evidence, led_by_root([finding for check in (*CHECKS, *ADDED) for finding in check.findings(evidence)])
    )
    lanes = _lanes(evidence, findings, not no_control, not no_base)
    outcome, reason = _outcome(evidence, lanes, no_control)
    if outcome is Outcome.ERROR and reason == no_control and control and control.outcome is Outcome.NOT_RUN:
        reason = f"its control, cell {evidence.cell.control}, was not run"
        return CellVerdict(Outcome.NOT_RUN, _without_passes(lanes), findings, reason)
    problem = _unproven(evidence, lanes, outcome)
    if problem:
        return CellVerdict(Outcome.ERROR, _without_passes(lanes), findings, problem)
    if no_base and outcome in (Outcome.PASS, Outcome.FLAKY):
        return CellVerdict(Outcome.ERROR, lanes, findings, no_base, untimed=True)
    return CellVerdict(outcome, lanes, findings, reason)


def _with_earlier(evidence: CellEvidence, verdict: CellVerdict, today: str, control: CellVerdict | None) -> CellVerdict:
    """Return the verdict on all attempts: a later pass does not undo a failure of the code."""
    if verdict.outcome is Outcome.FAIL:
        return verdict
    doubts = []
    for attempt in evidence.earlier:
        before = _judge_attempt(attempt, today, control)
        if before.outcome is Outcome.FAIL:
            return _failed_before(attempt.attempt, before, verdict)
        failed = LaneVerdict.FAIL in before.lanes.values()
        decided = before.outcome is not Outcome.ERROR
        doubt = "" if decided else _doubt_about(attempt, before.reason, usable=before.usable, failed=failed)
        doubts += [f"attempt {attempt.attempt}, which may have failed: {doubt}"] if doubt else []
    if doubts and verdict.outcome in (Outcome.PASS, Outcome.FLAKY):
        return verdict._replace(outcome=Outcome.ERROR, lanes=_without_passes(verdict.lanes), reason=doubts[0])
    return verdict


def _doubt_about(attempt: CellEvidence, reason: str, *, usable: bool, failed: bool) -> str:
    """Return why a failure of the code cannot be excluded; '' if the attempt ended for another or an unknown cause.

    `reason`: of the attempt's ERROR. `usable`: its records can be trusted. `failed`: a lane failed.
    """
    if attempt.damaged:
        return attempt.damaged[0]
    if attempt.result is not None and (problem := result_problem(attempt, attempt.result)):
        return problem
    if not attempt.records:
        return ""
    if not usable:
        return reason
    if attempt.cause is not None:
        # That a node had an error too does not excuse an exception in the code.
        result = None if attempt.result is None else replace(attempt.result, status="failed")
        cause = cause_of(attempt.endings, result)
        return cause.message if cause is not None and cause.blames_code else ""
    lost = attempt.result is None or attempt.result.status == "error"
    return "" if lost and not failed else reason


def _failed_before(number: int, before: CellVerdict, verdict: CellVerdict) -> CellVerdict:
    """Return FAIL by the findings of attempt `number`, which come before those of the newest attempt."""
    findings = [
        replace(finding, message=f"attempt {number}: {finding.message}", where={**finding.where, "attempt": number})
        for finding in before.findings
        if finding.severity is Severity.ERROR
    ]
    lanes = {
        lane: before.lanes[lane] if before.lanes[lane] is LaneVerdict.FAIL else verdict.lanes[lane] for lane in Lane
    }
    reason = f"attempt {number} failed; a later attempt does not undo that"
    return CellVerdict(Outcome.FAIL, lanes, [*findings, *verdict.findings], reason, verdict.usable)


def undecided(reason: str) -> CellVerdict:
    """Return ERROR: there is no evidence to judge."""
    return CellVerdict(Outcome.ERROR, _skipped(), [], reason, usable=False)


def _unproven(evidence: CellEvidence, lanes: dict[Lane, LaneVerdict], outcome: Outcome) -> str:
    """Return what makes the evidence too weak for the verdict; '' if nothing does, or if it does not matter.

    Wrong metadata explains missing evidence of later legs, so the cell fails whatever else is missing.
    """
    if lanes[Lane.METADATA] is LaneVerdict.FAIL or outcome is Outcome.ERROR:
        return ""
    problem = incomplete(evidence)
    if problem or outcome is Outcome.FAIL or evidence.cause is not None:
        return problem
    why = uncompared(evidence)
    return f"times cannot be compared with earlier runs: {why}" if why else ""


def _without_passes(lanes: dict[Lane, LaneVerdict]) -> dict[Lane, LaneVerdict]:
    return {lane: LaneVerdict.FAIL if lanes[lane] is LaneVerdict.FAIL else LaneVerdict.SKIP for lane in Lane}


def _skipped() -> dict[Lane, LaneVerdict]:
    return dict.fromkeys(Lane, LaneVerdict.SKIP)


def _control_problem(evidence: CellEvidence, today: str, known: CellVerdict | None) -> str:
    """Return why there is no control to compare with; '' if there is one or the cell is the control."""
    if evidence.cell.control is None:
        return ""
    if evidence.control is None:
        return f"its control, cell {evidence.cell.control}, is not in the run"
    verdict = known or judge_cell(evidence.control, today=today)
    if verdict.outcome in SOUND or _only_slow(verdict):
        problem = other_device(evidence, evidence.control)
        return (
            f"numerics cannot be compared with its control, cell {evidence.cell.control}: {problem}" if problem else ""
        )
    outcome = verdict.outcome.value
    return f"its control, cell {evidence.cell.control}, did not pass ({outcome}), so numerics cannot be compared"


def _only_slow(verdict: CellVerdict) -> bool:
    """Return whether only the throughput lane failed or is undecided, so that the numbers are right."""
    if verdict.untimed:
        return True
    numbers = verdict.lanes[Lane.METADATA], verdict.lanes[Lane.NUMERICS]
    return verdict.lanes[Lane.THROUGHPUT] is LaneVerdict.FAIL and set(numbers) <= {
        LaneVerdict.PASS,
        LaneVerdict.PARTIAL,
    }


def _lanes(
    evidence: CellEvidence, findings: list[Finding], has_control: bool, has_base: bool
) -> dict[Lane, LaneVerdict]:
    failed = {finding.lane for finding in findings if finding.severity is Severity.ERROR}
    metadata = all(ending.progress.leg in (*TRAINED, "end") for ending in evidence.endings)
    metadata = metadata and all(record.batches for record in evidence.records.values())  # compared with the plan
    numerics = evidence.cause is None and has_control and bool(evidence.steps)
    timings = any(record.timings for record in evidence.records.values())
    timed = evidence.cause is None and has_base and (timings or against_history(evidence) is not None)
    lanes = _skipped()
    for lane, complete in ((Lane.METADATA, metadata), (Lane.NUMERICS, numerics), (Lane.THROUGHPUT, timed)):
        if lane in failed:
            lanes[lane] = LaneVerdict.FAIL
        elif complete:
            lanes[lane] = LaneVerdict.PASS
    if lanes[Lane.NUMERICS] is LaneVerdict.PASS and not_compared(evidence):
        lanes[Lane.NUMERICS] = LaneVerdict.PARTIAL
    return lanes


def _outcome(evidence: CellEvidence, lanes: dict[Lane, LaneVerdict], no_control: str) -> tuple[Outcome, str]:
    result, cause = evidence.result, evidence.cause
    infrastructure = (result is not None and result.status == "error") or (cause is not None and not cause.blames_code)
    if lanes[Lane.METADATA] is LaneVerdict.FAIL:
        return Outcome.FAIL, ""
    if infrastructure:
        # Numbers from before an infrastructure failure prove nothing: a failing machine can compute anything.
        reason = result.reason if result is not None and result.reason else ""
        return Outcome.ERROR, "; ".join(part for part in (reason, cause.message if cause else "") if part)
    if lanes[Lane.NUMERICS] is LaneVerdict.FAIL:
        return Outcome.FAIL, ""
    if no_control:
        return Outcome.ERROR, no_control
    if result is not None and result.status != "completed":
        return Outcome.ERROR, f"every rank completed, but the attempt is {result.status}: {result.reason}"
    if lanes[Lane.THROUGHPUT] is LaneVerdict.FAIL:
        return Outcome.FAIL, ""
    if evidence.retried:
        return Outcome.FLAKY, "passed only on a retry"
    return Outcome.PASS, ""


def _with_xfail(xfail: XFail, verdict: CellVerdict, today: str) -> CellVerdict:
    """Apply the matrix's xfail entry. ISO dates compare as text."""
    known = f"{xfail.reason} ({xfail.link})" if xfail.link else xfail.reason
    if verdict.outcome is Outcome.FAIL:
        if xfail.expires and xfail.expires < today:
            return verdict._replace(
                known=KnownFailure.EXPIRED, reason=f"the xfail entry expired on {xfail.expires}: {known}"
            )
        difference = _difference(xfail, verdict)
        if difference:
            reason = f"fails, but not as the xfail entry states: {difference}; expected: {known}"
            return verdict._replace(known=KnownFailure.ELSEWHERE, reason=reason)
        return verdict._replace(outcome=Outcome.XFAIL, known=KnownFailure.EXPECTED, reason=known)
    if verdict.outcome in (Outcome.PASS, Outcome.FLAKY):
        unjudged = [
            lane.value for lane in Lane if lane.value in xfail.lanes and verdict.lanes[lane] is LaneVerdict.SKIP
        ]
        if unjudged:
            reason = f"expected to fail in {' and '.join(unjudged)}, which could not be judged: {known}"
            return verdict._replace(outcome=Outcome.ERROR, reason=reason, untimed=True)
        outcome = Outcome.FAIL if xfail.strict else Outcome.XPASS
        reason = f"{verdict.reason or 'passed'}, though the matrix expects a failure: {known}"
        return verdict._replace(outcome=outcome, known=KnownFailure.PASSES, reason=reason)
    return verdict


def _difference(xfail: XFail, verdict: CellVerdict) -> str:
    """Return how the failure differs from the expected one, or ''."""
    failed = [lane.value for lane in Lane if verdict.lanes[lane] is LaneVerdict.FAIL]
    if xfail.lanes and failed != [lane.value for lane in Lane if lane.value in xfail.lanes]:
        return f"{' and '.join(failed)} failed, not {' and '.join(xfail.lanes)}"
    errors = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
    others = sorted({finding.check for finding in errors} - set(xfail.checks)) if xfail.checks else []
    if others:
        return f"{' and '.join(others)} failed too, not only {' and '.join(xfail.checks)}"
    messages = [finding.message for finding in errors]
    missing = [text for text in xfail.message_contains if not any(text in message for message in messages)]
    return f"no finding contains {' or '.join(map(repr, missing))}" if missing else ""
