"""The report of a run from its plan and evidence. Pure: dates and measured times are arguments."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cell.canary_legs import why_not
from harness.core.cell.flops import load_config, train_flops, work_of
from harness.core.cell.identity import cell_id
from harness.core.hardware import PeakFound, mfu, peak_of
from harness.core.outcomes import Finding, Lane, LaneVerdict, Outcome, Rejection, Severity, nothing_passed, verdict_of
from harness.core.run.provenance import Provenance
from harness.core.run.report import (
    EARLIER_RUNS,
    NOT_JUDGED,
    FailureView,
    LoadRate,
    LossCurve,
    MetadataState,
    RankView,
    Report,
    ReportCell,
    ReportRejected,
    Throughput,
    TimedRatio,
)
from harness.core.run.run_plan import PlannedCell, RejectedCell, RunPlan
from harness.core.tolerances import Bound, NoiseFloor
from harness.judge.checks.gradients import grad_norms
from harness.judge.evidence.cell_evidence import CellEvidence, Observation
from harness.judge.evidence.endings import Ending
from harness.judge.evidence.params_differences import form_problems, value_problems
from harness.judge.evidence.timings import (
    Load,
    Times,
    against_history,
    busy_step,
    documents_of,
    packed_pass,
    paired_times,
    ratio_of,
    times_of,
)
from harness.judge.failures.classification import JobEnding, memory_limit
from harness.judge.stats.paired import PairedRatio, paired_ratio
from harness.judge.verdict import CellVerdict, judge_cell, undecided
from harness.judge.weight import weight_of

FULL_ROWS = "packed per real token over full rows per slot"
FULL_BOUND = Bound(
    value=1 / 0.9, unit="factor", origin=f"nine tenths of the tokens per second of full rows; {NOT_JUDGED}"
)
FUSION_BOUND = Bound(value=1.1, unit="factor", origin=f"shown, {NOT_JUDGED}")


def throughput(evidence: CellEvidence) -> Throughput:
    """Return medians over the steps after the first (it warms up); a step takes as long as its slowest rank.

    Rates are per rank: of all replicas / (world size x step time). Operations are those on real tokens alone
    (harness/core/cell/flops.py).
    """
    times, real, slots, flops = [], [], [], []
    for step in list(evidence.steps)[1:]:
        step_records = [record for _, record in evidence.step_records(step)]
        batch_heads = [record for _, record in evidence.step_records(step, pp=0, tp=0, cp=0)]
        slowest = max((record.time_s for record in step_records), default=0.0)
        if len(step_records) < evidence.layout.world_size or slowest <= 0:
            continue
        times.append(slowest)
        real.append(sum(record.real_tokens for record in batch_heads))
        slots.append(sum(record.slots for record in batch_heads))
        config = evidence.cell.config
        flops.append(train_flops(config.model, (document.length for document in config.documents_of(step))))
    whole = _of_the_cell(evidence)
    if not times:
        return whole
    world = evidence.layout.world_size
    tflops = statistics.median(count / time / world / 1e12 for count, time in zip(flops, times))
    return replace(
        whole,
        real_tokens_per_s=statistics.median(count / time / world for count, time in zip(real, times)),
        slots_per_s=statistics.median(count / time / world for count, time in zip(slots, times)),
        efficiency=sum(real) / sum(slots) if sum(slots) else None,
        tflops_per_s=tflops,
        mfu=mfu(tflops, peak_for(evidence)),
        step_p50_s=statistics.median(times),
        step_p95_s=_percentile(times, 0.95) if len(times) > 1 else None,  # of one step it says nothing
        step_busy_s=busy_step(evidence),
        step_times_s=times,
    )


def _of_the_cell(evidence: CellEvidence) -> Throughput:
    """Return figures that need no timed step: memory, the device and its peak, the timing leg."""
    records = list(evidence.records.values())
    peak = peak_for(evidence)
    first = evidence.records.get(0)
    return Throughput(
        peak_tflops=peak.tflops,
        peak_origin=peak.origin,
        peak_memory_bytes=max((record.peak_memory_bytes for record in records), default=0) or None,
        peak_reserved_bytes=max((record.peak_reserved_bytes or 0 for record in records), default=0) or None,
        memory_limit_bytes=memory_limit(records),
        warmup_rounds=max((record.warmup_rounds for record in records), default=0),
        gpu_states=first.gpu_states if first else [],
        loads=load_rates(evidence),
        ratios=timed_ratios(evidence),
        packed_s=packed_pass(evidence),
        rounds_s=rounds_of(evidence),
    )


def peak_for(evidence: CellEvidence) -> PeakFound:
    """Return the peak of the ranks' devices for the cell's dtype; unknown if the devices differ."""
    devices = sorted({record.environment.get("device", "") for record in evidence.records.values()})
    if len(devices) > 1:
        return PeakFound(tflops=None, origin=f"ranks ran on different devices: {', '.join(devices)}")
    return peak_of(devices[0] if devices else "", evidence.cell.config.dtype, evidence.peak_tflops)


def load_rates(evidence: CellEvidence) -> list[LoadRate]:
    """Return rates of the timing leg's loads that are passes of the model, from the medians of their rounds."""
    config, world, peak = evidence.cell.config, evidence.layout.world_size, peak_for(evidence)
    rates = []
    for (load, documents), rounds in times_of(evidence).items():
        ran = load_config(config, load, documents)
        seconds = statistics.median(rounds.values())
        if ran is None or seconds <= 0:
            continue
        work = work_of(ran)
        tflops = work.flops / seconds / world / 1e12
        rates.append(
            LoadRate(
                load=load,
                documents=documents,
                seconds=seconds,
                real_tokens_per_s=work.real_tokens / seconds / world,
                slots_per_s=work.slots / seconds / world,
                tflops_per_s=tflops,
                mfu=mfu(tflops, peak),
            )
        )
    return rates


def rounds_of(evidence: CellEvidence) -> dict[str, list[float]]:
    """Return seconds of each round of the timing leg by load, to compare with another run of the same cell."""
    seconds = {}
    for (load, documents), rounds in times_of(evidence).items():
        name = f"{load}, {documents} documents" if documents else load
        seconds[name] = [rounds[number] for number in sorted(rounds)]
    return seconds


def _percentile(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def timed_ratios(evidence: CellEvidence) -> list[TimedRatio]:
    """Return all comparisons of the timing leg, judged or not."""
    times, tolerances = times_of(evidence), evidence.tolerances
    pairs: list[tuple[str, Load, Load, Bound]] = []
    for part, title, bound in (
        ("rotary", "rotary function", tolerances.rotary_slope),
        ("step", "whole step", tolerances.segment_slope),
    ):
        documents = documents_of(times, part)
        if len(documents) > 1:
            most, least = documents[-1], documents[0]
            pairs.append((f"{title}, {most} documents over {least}", (part, most), (part, least), bound))
    pairs += _fused(evidence, documents_of(times, "rotary_other"))
    pairs.append(("packed over unpacked", ("packed", 0), ("unpacked", 0), tolerances.packed_slower))
    compared = [(what, ratio_of(times, load, base), bound) for what, load, base, bound in pairs]
    compared.append((FULL_ROWS, _over_full_rows(evidence, times), FULL_BOUND))
    if evidence.base is not None:
        what = f"over stack {evidence.base.cell.config.stack}, interleaved"
        compared.append((what, paired_ratio(*paired_times(evidence)), tolerances.slower_than))
    shown = [_shown(what, ratio, bound) for what, ratio, bound in compared if ratio is not None]
    return [*_over_history(evidence), *shown]


def _shown(what: str, ratio: PairedRatio, bound: Bound) -> TimedRatio:
    return TimedRatio(
        what=what,
        median=ratio.median,
        low=ratio.low,
        high=ratio.high,
        rounds=ratio.rounds,
        bound=bound,
        verdict=ratio.verdict(bound.value),
    )


def _fused(evidence: CellEvidence, documents: list[int]) -> list[tuple[str, Load, Load, Bound]]:
    """Return the pairs of the rotary function unfused over fused, with the fewest and the most documents."""
    own, other = "rotary", "rotary_other"
    unfused, fused = (other, own) if evidence.cell.config.model.rope_fusion else (own, other)
    return [
        (f"rotary function, unfused over fused, {count} documents", (unfused, count), (fused, count), FUSION_BOUND)
        for count in dict.fromkeys([*documents[:1], *documents[-1:]])
    ]


def _over_full_rows(evidence: CellEvidence, times: Times) -> PairedRatio | None:
    """Return the time for a real token of packed rows over that for a slot of full rows."""
    ratio, config = ratio_of(times, ("packed", 0), ("full", 0)), evidence.cell.config
    full = load_config(config, "full", 0) if ratio else None
    if ratio is None or full is None:
        return None
    return ratio.times(work_of(full).slots / work_of(config).real_tokens)


def _over_history(evidence: CellEvidence) -> list[TimedRatio]:
    """Return a step over the median of earlier runs; the interval is over their slowest and fastest."""
    compared, bound = against_history(evidence), evidence.tolerances.slower_than_history
    if compared is None:
        return []
    verdict = "slower" if compared.slower(bound.value) else "no difference"
    return [
        TimedRatio(
            what=EARLIER_RUNS,
            median=compared.ratio,
            low=compared.low,
            high=compared.high,
            rounds=len(compared.samples),
            bound=bound,
            verdict=verdict,
        )
    ]


def rank_views(evidence: CellEvidence) -> list[RankView]:
    """Return what each rank received for micro-batch 0 of step 0: in the training leg if reached, else as fetched."""
    first: dict[int, dict[str, list[Observation]]] = {}
    for observation in evidence.observations:
        place = observation.place
        if place.step == 0 and place.micro_batch == 0:
            first.setdefault(place.rank, {}).setdefault(place.leg, []).append(observation)
    return [_rank_view(evidence, ending, first.get(ending.rank, {})) for ending in evidence.endings]


def _rank_view(evidence: CellEvidence, ending: Ending, legs: dict[str, list[Observation]]) -> RankView:
    layout, place = evidence.layout, ending.place
    layers = [
        layer
        for chunk in range(layout.vpp)
        for layer in layout.layers(evidence.cell.config.model.spread, place.pp, chunk)
    ]
    observations = legs.get("training") or legs.get("metadata") or []
    states = [(_state(evidence, observation), observation.params) for observation in observations]
    missing = [pair for pair in states if pair[0] == "missing"]
    differing = [pair for pair in states if pair[0] == "differs"]
    # One state stands for all layers of the rank, the worst.
    state, params = (missing or differing or states or [(_without_params(evidence, ending), None)])[0]
    return RankView(
        rank=ending.rank,
        place=place,
        state=state,
        cu_seqlens=params.cu_seqlens_q if params else None,
        max_seqlen=params.max_seqlen_q if params else None,
        layers=layers,
        ended=ending.ended,
    )


def _without_params(evidence: CellEvidence, ending: Ending) -> MetadataState:
    if ending.rank not in evidence.records:
        return "no-record"
    return "missing" if evidence.packed else "unpacked"


def _state(evidence: CellEvidence, observation: Observation) -> MetadataState:
    truth = evidence.truth(0, observation.place.at.dp, 0)
    if observation.params is None:
        return "missing" if evidence.packed else "unpacked"
    if truth is None or truth.params is None:
        return "differs"
    style = evidence.cell.config.style
    form = form_problems(observation.params, style, observation.device, evidence.layout.cp)
    return "differs" if value_problems(observation.params, truth.params, style) or form else "ok"


def loss_curve(evidence: CellEvidence, *, judged: bool) -> LossCurve:
    """Return curves of a cell and its reference. `judged`: the numerics lane compared the two, so bounds are there."""
    own = mean_losses(evidence), list(grad_norms(evidence).values())
    reference = evidence.reference
    if reference is None:
        return LossCurve(loss=own[0], grad_norm=own[1])
    return LossCurve(
        loss=own[0],
        grad_norm=own[1],
        control_loss=mean_losses(reference),
        control_grad_norm=list(grad_norms(reference).values()),
        loss_bound=evidence.bound("step_loss", 1) if judged else None,
        grad_norm_bound=evidence.bound("grad_norm", 1) if judged else None,
    )


def canaries_view(evidence: CellEvidence) -> dict[str, str]:
    """Return canary -> whether it ran, or why not. Results of canaries are findings."""
    config, view = evidence.cell.config, {}
    for canary in config.canaries:
        legs = [leg.name for leg in evidence.legs_planned if leg.canary == canary]
        ran = legs and all(name in evidence.legs for name in legs)
        view[canary] = "ran" if ran else why_not(config, canary) or "did not end"
    return view


def mean_losses(evidence: CellEvidence) -> list[float]:
    """Return the loss per token of every finished step, recorded by the first rank of the last stage."""
    losses = []
    for step in evidence.finished_steps:
        last_stage = [recorded for _, recorded in evidence.step_records(step, pp=evidence.last_stage)]
        first = next(
            (recorded for recorded in last_stage if recorded.loss_sum is not None and recorded.token_count), None
        )
        if first is not None and first.loss_sum is not None and first.token_count:
            losses.append(first.loss_sum / first.token_count)
    return losses


def failure_view(evidence: CellEvidence, findings: Sequence[Finding] = ()) -> FailureView | None:
    """Return the first rank that failed; None when all completed. `findings`: of the cell; one may explain it."""
    cause, known = evidence.cause, evidence.failure_class
    if cause is None or known is None:
        return None
    ending = cause.ending
    attempt = evidence.result.attempt if evidence.result else 1
    folder = evidence.folder or f"cells/{evidence.cell.id}/attempt-{attempt}"
    log = f"{folder}/log/rank-{ending.rank:05d}.log"
    follows = next((finding.follows_from for finding in findings if finding.check in ("completeness", "ended")), "")
    without_log = ending.rank not in evidence.logs and not evidence.records  # the cell never began
    return FailureView(
        rank=ending.rank,
        place=ending.place,
        ended=ending.ended,
        message=cause.message,
        traceback=ending.failure.traceback if ending.failure else "",
        log=evidence.job.path if without_log else log,
        failure_class=known.name,
        title=known.title,
        domain=known.domain,
        role=known.role,
        retry=known.retry,
        advice="" if follows else known.advice,
        evidence=known.evidence,
        follows_from=follows,
    )


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
    for cell_evidence in evidence:
        cell = cell_evidence.cell
        try:
            control = verdicts.get(cell.control or "")
            verdict = judge_cell(cell_evidence, today=today, control=control)
            if verdict.outcome is Outcome.REJECTED:
                shown = _rejected_at_run_time(cell, cell_evidence, verdict)
            else:
                shown = replace(
                    _cell(plan, cell, cell_evidence, verdict), scope=_scope(cell_evidence, verdict, control)
                )
        except Exception as error:
            verdict = undecided(crashed(cell.id, error))
            # Without its records: what made the judge raise would make the views of the report raise too.
            shown = _cell(plan, cell, replace(cell_evidence, records={}, result=None, job=JobEnding()), verdict)
        cells[cell.id] = shown
        if seen is not None:
            seen(shown)
        if cell.id in needed:
            verdicts[cell.id] = verdict
        if cell_evidence.noise and cell.config.dtype != "fp32":  # its own bounds are nearly always larger
            noise[cell.id] = dict(cell_evidence.noise)
    return Judged(cells=cells, noise=noise)


def report_of(
    plan: RunPlan,
    judged: Judged,
    *,
    timing: Mapping[str, float],
    provenance: Provenance,
    problems: Sequence[str] = (),
) -> Report:
    """Return the report of a plan, all of whose cells are judged. `problems`: why the run as a whole proves nothing."""
    judged_cells = [judged.cells[cell.id] for cell in plan.expansion.cells]
    cells = [cell for cell in judged_cells if isinstance(cell, ReportCell)]
    rejected = [_rejected(cell) for cell in plan.expansion.rejected]
    rejected += [cell for cell in judged_cells if isinstance(cell, ReportRejected)]
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
        provenance=provenance,
        timing=dict(timing),
        cells=cells,
        rejected=rejected,
        selection=plan.expansion.selection,
        noise=judged.noise,
        origin=plan.origin,
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
    """Return whether the numbers are wrong on one rank too, where the oracle judges both; '' if nothing says so.

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
    """Return the command that runs one cell as this run did; a fault is injected after cells are chosen."""
    fault = cell.config.fault
    chosen = cell_id(replace(cell.config, fault=None)) if fault else cell.id
    cluster = ["--cluster", plan.cluster] if plan.cluster else []
    settings = [word for setting in plan.settings for word in ("--set", setting)]
    injected = ["--fault", fault] if fault else []
    since = ["--since", plan.since] if plan.since is not None and cell.config.stack in plan.earlier_stacks else []
    return shlex.join(["harness", "run", plan.matrix_file, *cluster, *settings, *since, *injected, "--only", chosen])


def _timing(evidence: CellEvidence) -> dict[str, float]:
    """Return wall_s, steps_s and overhead_s (all but training steps), in seconds; empty if the cell never ended."""
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
    """Return a cell that was rejected at run time because its stack lacks what it needs."""
    recorded = evidence.result.rejection if evidence.result else None
    rejection = recorded or Rejection(rule="stack", reason=verdict.reason)
    return ReportRejected(
        id=cell.id, axes=cell.axes, rule=rejection.rule, reason=rejection.reason, rejections=[rejection], line=cell.line
    )
