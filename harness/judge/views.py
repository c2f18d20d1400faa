"""What a report shows of a cell beside its findings: rank picture, throughput, loss curves, first failure."""

from __future__ import annotations

import math
import statistics

from harness.judge.checks.grad_norm import grad_norms
from harness.judge.endings import Ending
from harness.judge.evidence import CellEvidence, Sighting
from harness.judge.params import form_problems, value_problems
from harness.judge.report_model import FailureView, LossCurve, RankView, Throughput


def rank_views(evidence: CellEvidence) -> list[RankView]:
    """Per rank, what it saw of micro-batch 0 of step 0: in the training leg if it came there, else as fetched."""
    first: dict[int, dict[str, list[Sighting]]] = {}
    for sighting in evidence.sightings:
        place = sighting.place
        if place.step == 0 and place.micro_batch == 0:
            first.setdefault(place.rank, {}).setdefault(place.leg, []).append(sighting)
    return [_rank_view(evidence, ending, first.get(ending.rank, {})) for ending in evidence.endings]


def _rank_view(evidence: CellEvidence, ending: Ending, legs: dict[str, list[Sighting]]) -> RankView:
    layout, place = evidence.layout, ending.place
    layers = [
        layer
        for chunk in range(layout.vpp)
        for layer in layout.layers(evidence.cell.config.model.layers, place.pp, chunk)
    ]
    seen = legs.get("training") or legs.get("metadata") or []
    states = [(_state(evidence, sighting), sighting.params) for sighting in seen]
    worst = next((item for item in states if item[0] == "missing"), None)
    worst = worst or next((item for item in states if item[0] == "differs"), states[0] if states else None)
    if worst is None:
        recorded = ending.rank in evidence.records
        worst = ("no-record" if not recorded else "missing" if evidence.packed else "unpacked", None)
    state, params = worst
    return RankView(
        rank=ending.rank,
        place=place,
        state=state,
        cu_seqlens=params.cu_seqlens_q if params else None,
        max_seqlen=params.max_seqlen_q if params else None,
        layers=layers,
        ended=ending.ended,
    )


def _state(evidence: CellEvidence, sighting: Sighting) -> str:
    truth = evidence.truth(0, sighting.place.at.dp, 0)
    if sighting.params is None:
        return "missing" if evidence.packed else "unpacked"
    if truth is None or truth.params is None:
        return "differs"
    device = evidence.records[sighting.place.rank].environment.get("torch_device")
    form = form_problems(sighting.params, evidence.cell.config.style, device)
    return "differs" if value_problems(sighting.params, truth.params) or form else "ok"


def throughput(evidence: CellEvidence) -> Throughput:
    """Medians over the steps after the first (it warms up); a step takes as long as its slowest rank.

    Rates are per rank: tokens of all replicas / (world size x step time), in tokens per second.
    """
    times, real, slots = [], [], []
    for step in list(evidence.steps)[1:]:
        seen = [item for _, item in evidence.step_records(step)]
        heads = [item for _, item in evidence.step_records(step, pp=0, tp=0, cp=0)]
        slowest = max((item.time_s for item in seen), default=0.0)
        if len(seen) < evidence.layout.world_size or slowest <= 0:
            continue
        times.append(slowest)
        real.append(sum(item.real_tokens for item in heads))
        slots.append(sum(item.slots for item in heads))
    peak = max((record.peak_memory_bytes for record in evidence.records.values()), default=0) or None
    if not times:
        return Throughput(peak_memory_bytes=peak)
    world = evidence.layout.world_size
    return Throughput(
        real_tokens_per_s=statistics.median(count / time / world for count, time in zip(real, times)),
        slots_per_s=statistics.median(count / time / world for count, time in zip(slots, times)),
        efficiency=sum(real) / sum(slots) if sum(slots) else None,
        step_p50_s=statistics.median(times),
        step_p95_s=_percentile(times, 0.95),
        peak_memory_bytes=peak,
    )


def _percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def loss_curve(evidence: CellEvidence, *, judged: bool) -> LossCurve:
    """`judged`: the numerics lane compared the cell with its reference, so the curve carries the bounds."""
    own = mean_losses(evidence), list(grad_norms(evidence).values())
    reference = evidence.reference
    if reference is None:
        return LossCurve(loss=own[0], grad_norm=own[1])
    return LossCurve(
        loss=own[0],
        grad_norm=own[1],
        reference_loss=mean_losses(reference),
        reference_grad_norm=list(grad_norms(reference).values()),
        loss_bound=evidence.tolerances.step_loss if judged else None,
        grad_norm_bound=evidence.tolerances.grad_norm if judged else None,
    )


def mean_losses(evidence: CellEvidence) -> list[float]:
    """Loss per token of every finished step, as the first rank of the last stage has it."""
    losses = []
    for step in evidence.finished_steps:
        found = [seen for _, seen in evidence.step_records(step, pp=evidence.last_stage)]
        first = next((seen for seen in found if seen.loss_sum is not None and seen.token_count), None)
        if first is not None and first.loss_sum is not None and first.token_count:
            losses.append(first.loss_sum / first.token_count)
    return losses


def failure_view(evidence: CellEvidence) -> FailureView | None:
    """The first rank that failed; None when all completed."""
    cause, known = evidence.cause, evidence.failure_class
    if cause is None or known is None:
        return None
    ending = cause.ending
    attempt = evidence.result.attempt if evidence.result else 1
    log = f"cells/{evidence.cell.id}/attempt-{attempt}/log/rank-{ending.rank:05d}.log"
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
        advice=known.advice,
        evidence=known.evidence,
    )
