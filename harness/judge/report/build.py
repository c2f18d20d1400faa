"""The report of a run from its plan and evidence. Pure: dates and measured times are arguments."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cell.identity import cell_id
from harness.core.outcomes import Lane, LaneVerdict, Outcome, Rejection, Severity, nothing_passed, verdict_of
from harness.core.run.run_plan import PlannedCell, RejectedCell, RunPlan
from harness.core.tolerances import NoiseFloor
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.failures.classification import JobEnding
from harness.judge.report.model import Report, ReportCell, ReportRejected
from harness.judge.report.speed import throughput
from harness.judge.report.views import canaries_view, failure_view, loss_curve, rank_views
from harness.judge.verdict import CellVerdict, judge_cell, undecided
from harness.judge.weight import weight_of


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Judged cells of a plan."""

    cells: dict[str, ReportCell | ReportRejected]  # by cell id
    noise: dict[str, dict[str, NoiseFloor]]  # cell id -> quantity -> measured floor


Crashed = Callable[[str, Exception], str]  # (cell id, exception) -> reason of its ERROR
Seen = Callable[[ReportCell | ReportRejected], None]


def judge_cells(
    plan: RunPlan,
    evidence: Iterable[CellEvidence],
    *,
    today: str,
    crashed: Crashed,
    seen: Seen | None = None,
) -> Judged:
    """Judge each cell of the evidence once; controls come first. `today`: an ISO date.

    `crashed` is called when judging a cell raises; other cells are not affected. `seen`: called with each judged cell.
    """
    verdicts: dict[str, CellVerdict] = {}  # of controls
    needed = {cell.control for cell in plan.expansion.cells}
    cells: dict[str, ReportCell | ReportRejected] = {}
    shown: ReportCell | ReportRejected
    noise: dict[str, dict[str, NoiseFloor]] = {}
    for item in evidence:
        cell = item.cell
        try:
            control = verdicts.get(cell.control or "")
            verdict = judge_cell(item, today=today, control=control)
            if verdict.outcome is Outcome.REJECTED:
                shown = _rejected_at_run_time(cell, item, verdict)
            else:
                shown = replace(_cell(plan, cell, item, verdict), scope=_scope(item, verdict, control))
        except Exception as error:
            verdict = undecided(crashed(cell.id, error))
            shown = _cell(plan, cell, replace(item, records={}, result=None, job=JobEnding()), verdict)
        cells[cell.id] = shown
        if seen is not None:
            seen(shown)
        if cell.id in needed:
            verdicts[cell.id] = verdict
        if item.noise and cell.config.dtype != "fp32":  # its own bounds are nearly always larger
            noise[cell.id] = dict(item.noise)
    return Judged(cells=cells, noise=noise)


def report_of(
    plan: RunPlan,
    judged: Judged,
    *,
    timing: Mapping[str, float],
    provenance: Mapping[str, Any] | None = None,
    problems: Sequence[str] = (),
) -> Report:
    """The report of a plan, all of whose cells are judged. `problems`: why the run as a whole proves nothing."""
    found = [judged.cells[cell.id] for cell in plan.expansion.cells]
    cells = [cell for cell in found if isinstance(cell, ReportCell)]
    rejected = [_rejected(cell) for cell in plan.expansion.rejected]
    rejected += [cell for cell in found if isinstance(cell, ReportRejected)]
    counts = {outcome: sum(cell.outcome is outcome for cell in cells) for outcome in Outcome}
    counts[Outcome.REJECTED] = len(rejected)
    roles = {cell.id: cell.role for cell in plan.expansion.cells}
    outcomes = [cell.outcome for cell in cells if cell.role == "cell"]
    outcomes += [Outcome.REJECTED for cell in rejected if roles.get(cell.id, "cell") == "cell"]
    problems = [*problems, *filter(None, [nothing_passed(outcomes)])]
    return Report(
        run_id=plan.run_id,
        matrix=plan.matrix_name,
        matrix_file=plan.matrix_file,
        verdict=verdict_of(counts, problems),
        problems=problems,
        counts=counts,
        provenance={**plan.provenance, **(provenance or {})},
        timing=dict(timing),
        cells=cells,
        rejected=rejected,
        selection=plan.expansion.selection,
        noise=judged.noise,
        faults=plan.faults,
    )


def _cell(plan: RunPlan, cell: PlannedCell, evidence: CellEvidence, verdict: CellVerdict) -> ReportCell:
    views: dict[str, Any] = {}
    if verdict.usable:
        views = {
            "throughput": throughput(evidence),
            "curve": loss_curve(evidence, judged=verdict.lanes[Lane.NUMERICS] is not LaneVerdict.SKIP),
            "ranks": rank_views(evidence),
            "failure": failure_view(evidence, verdict.findings),
            "canaries": canaries_view(evidence),
            "evidence": weight_of(evidence),
        }
    elif evidence.job.state or evidence.job.log:  # no rank left a record; the job may explain why
        views = {"failure": failure_view(evidence)}
    return ReportCell(
        id=cell.id,
        axes=cell.axes,
        layout=cell.config.layout,
        outcome=verdict.outcome,
        lanes=verdict.lanes,
        findings=verdict.findings,
        timing=_timing(evidence),
        reproduce=cell.reproduce or _reproduce(plan, cell),
        role=cell.role,
        group=cell.group,
        control=cell.control,
        reason=verdict.reason,
        known=verdict.known,
        attempts=evidence.result.attempt if evidence.result else 1,
        fault=cell.config.fault or "",
        line=cell.line,
        **views,
    )


def _scope(evidence: CellEvidence, verdict: CellVerdict, control: CellVerdict | None) -> str:
    """Whether the numbers are wrong on one rank too, where the oracle judges both; empty if nothing says so.

    Of a packed cell a control that does not pack can only say that packing or layout is wrong.
    """
    first = next((finding for finding in verdict.findings if finding.severity is Severity.ERROR), None)
    if first is None or first.lane is not Lane.NUMERICS or not evidence.by_oracle:
        return ""
    if evidence.control is None or evidence.layout.world_size == 1:
        return "wrong on one rank already"
    if control is None or not evidence.control.by_oracle or control.outcome is Outcome.ERROR:
        return ""
    if any(finding.severity is Severity.ERROR for finding in control.findings):
        return "wrong on one rank already: its control fails too"
    if evidence.packed and not evidence.control.packed:
        return "wrong by packing or by this layout: its control, unpacked on one rank, passes"
    return "wrong only in this layout: its control on one rank passes"


def _reproduce(plan: RunPlan, cell: PlannedCell) -> str:
    """The command that runs one cell as this run did; a fault is injected after cells are chosen."""
    fault = cell.config.fault
    chosen = cell_id(replace(cell.config, fault=None)) if fault else cell.id
    cluster = ["--cluster", plan.cluster] if plan.cluster else []
    settings = [word for setting in plan.settings for word in ("--set", setting)]
    injected = ["--fault", fault] if fault else []
    return shlex.join(["harness", "run", plan.matrix_file, *cluster, *settings, *injected, "--only", chosen])


def _timing(evidence: CellEvidence) -> dict[str, float]:
    """wall_s, steps_s and overhead_s (all but training steps), in seconds; empty if the cell never ended."""
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
    """A cell that was rejected at run time because its stack lacks what it needs."""
    found = evidence.result.rejection if evidence.result else None
    rejection = found or Rejection(rule="stack", reason=verdict.reason)
    return ReportRejected(
        id=cell.id, axes=cell.axes, rule=rejection.rule, reason=rejection.reason, rejections=[rejection], line=cell.line
    )
