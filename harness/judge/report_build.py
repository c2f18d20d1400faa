"""The report of a run from its plan and evidence. Pure: dates and measured times come in as arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from harness.judge.evidence import CellEvidence
from harness.judge.report_model import Report, ReportCell, ReportRejected
from harness.judge.speed import throughput
from harness.judge.verdict import CellVerdict, judge_cell
from harness.judge.views import canaries_view, failure_view, loss_curve, rank_views
from harness.words.outcomes import Lane, LaneVerdict, Outcome, Rejection
from harness.words.run_plan import PlannedCell, RejectedCell, RunPlan


def build_report(
    plan: RunPlan,
    evidence: Mapping[str, CellEvidence],
    *,
    today: str,
    timing: Mapping[str, float],
    provenance: Mapping[str, Any] | None = None,
) -> Report:
    """Judge every planned cell. `evidence` must hold all of them (evidence.evidence_of makes it so).

    `today` is an ISO date; `timing` holds wall_s and what else was measured; `provenance` adds to the plan's.
    """
    verdicts = _judge_all(plan, evidence, today)
    cells, rejected = [], [_rejected(cell) for cell in plan.expansion.rejected]
    for cell in plan.expansion.cells:
        verdict = verdicts[cell.id]
        if verdict.outcome is Outcome.REJECTED:
            rejected.append(_rejected_at_run_time(cell, evidence[cell.id], verdict))
        else:
            cells.append(_cell(plan, cell, evidence[cell.id], verdict))
    counts = {outcome: sum(cell.outcome is outcome for cell in cells) for outcome in Outcome}
    counts[Outcome.REJECTED] = len(rejected)
    return Report(
        run_id=plan.run_id,
        matrix=plan.matrix_name,
        matrix_file=plan.matrix_file,
        verdict=_verdict(counts),
        counts=counts,
        provenance={**plan.provenance, **(provenance or {})},
        timing=dict(timing),
        cells=cells,
        rejected=rejected,
        noise={name: dict(item.noise) for name, item in evidence.items() if item.noise},
    )


def _judge_all(plan: RunPlan, evidence: Mapping[str, CellEvidence], today: str) -> dict[str, CellVerdict]:
    """References first, so that each is judged once."""
    verdicts: dict[str, CellVerdict] = {}
    for cell in plan.expansion.references_first:
        known = verdicts.get(cell.reference) if cell.reference else None
        verdicts[cell.id] = judge_cell(evidence[cell.id], today=today, reference=known)
    return verdicts


def _verdict(counts: Mapping[Outcome, int]) -> str:
    """As the exit code: a failure is certain, so it outranks what could not be decided."""
    if counts[Outcome.FAIL]:
        return "fail"
    return "error" if counts[Outcome.ERROR] else "pass"


def _cell(plan: RunPlan, cell: PlannedCell, evidence: CellEvidence, verdict: CellVerdict) -> ReportCell:
    views: dict[str, Any] = {}
    if verdict.usable:
        views = {
            "throughput": throughput(evidence),
            "curve": loss_curve(evidence, judged=verdict.lanes[Lane.NUMERICS] is not LaneVerdict.SKIP),
            "ranks": rank_views(evidence),
            "failure": failure_view(evidence),
            "canaries": canaries_view(evidence),
        }
    elif evidence.job.state or evidence.job.log:  # no rank can say anything, its job can
        views = {"failure": failure_view(evidence)}
    return ReportCell(
        id=cell.id,
        axes=cell.axes,
        layout=cell.config.layout,
        outcome=verdict.outcome,
        lanes=verdict.lanes,
        findings=verdict.findings,
        timing=_timing(evidence),
        reproduce=cell.reproduce or _reproduce(plan, cell.id),
        role=cell.role,
        group=cell.group,
        reference=cell.reference,
        reason=verdict.reason,
        attempts=evidence.result.attempt if evidence.result else 1,
        line=cell.line,
        **views,
    )


def _reproduce(plan: RunPlan, cell: str) -> str:
    """The command that runs one cell as this run did."""
    cluster = ["--cluster", plan.cluster] if plan.cluster else []
    return shlex.join(["harness", "run", plan.matrix_file, *cluster, "--only", cell])


def _timing(evidence: CellEvidence) -> dict[str, float]:
    """wall_s, steps_s and overhead_s (what is not training steps), in seconds; empty when the cell never ended."""
    result = evidence.result
    if result is None:
        return {}
    wall = result.finished - result.started
    return {"wall_s": wall, "steps_s": result.steps_s, "overhead_s": wall - result.steps_s}


def _rejected(cell: RejectedCell) -> ReportRejected:
    first = cell.rejections[0]
    return ReportRejected(
        id=cell.id,
        axes=cell.axes,
        rule=first.rule,
        reason=first.reason,
        rejections=list(cell.rejections),
        line=cell.line,
    )


def _rejected_at_run_time(cell: PlannedCell, evidence: CellEvidence, verdict: CellVerdict) -> ReportRejected:
    """The stack under test turned out not to have what the cell needs."""
    found = evidence.result.rejection if evidence.result else None
    rejection = found or Rejection(rule="stack", reason=verdict.reason)
    return ReportRejected(
        id=cell.id, axes=cell.axes, rule=rejection.rule, reason=rejection.reason, rejections=[rejection], line=cell.line
    )
