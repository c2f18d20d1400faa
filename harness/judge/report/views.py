"""Parts of a report cell other than its findings: rank picture, loss curves, first failure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.cell.canary_legs import why_not
from harness.core.outcomes import Finding
from harness.judge.checks.gradients import grad_norms
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.endings import Ending
from harness.judge.evidence.observations import Observation
from harness.judge.evidence.packed_params import form_problems, value_problems
from harness.judge.report.model import FailureView, LossCurve, MetadataState, RankView


def rank_views(evidence: CellEvidence) -> list[RankView]:
    """What each rank received for micro-batch 0 of step 0: in the training leg if it got there, else as fetched."""
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
    seen = legs.get("training") or legs.get("metadata") or []
    states = [(_state(evidence, observation), observation.params) for observation in seen]
    missing = [item for item in states if item[0] == "missing"]
    differing = [item for item in states if item[0] == "differs"]
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
    """Curves of a cell and its reference. `judged`: the numerics lane compared the two, so bounds are included."""
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
    """Canary -> whether it ran, or why not. Results of canaries are findings."""
    config, view = evidence.cell.config, {}
    for canary in config.canaries:
        legs = [leg.name for leg in evidence.legs_planned if leg.canary == canary]
        ran = legs and all(name in evidence.legs for name in legs)
        view[canary] = "ran" if ran else why_not(config, canary) or "did not end"
    return view


def mean_losses(evidence: CellEvidence) -> list[float]:
    """Loss per token of every finished step, recorded by the first rank of the last stage."""
    losses = []
    for step in evidence.finished_steps:
        found = [seen for _, seen in evidence.step_records(step, pp=evidence.last_stage)]
        first = next((seen for seen in found if seen.loss_sum is not None and seen.token_count), None)
        if first is not None and first.loss_sum is not None and first.token_count:
            losses.append(first.loss_sum / first.token_count)
    return losses


def failure_view(evidence: CellEvidence, findings: Sequence[Finding] = ()) -> FailureView | None:
    """The first rank that failed; None when all completed. `findings`: of the cell; one may explain the failure."""
    cause, known = evidence.cause, evidence.failure_class
    if cause is None or known is None:
        return None
    ending = cause.ending
    attempt = evidence.result.attempt if evidence.result else 1
    folder = evidence.folder or f"cells/{evidence.cell.id}/attempt-{attempt}"
    log = f"{folder}/log/rank-{ending.rank:05d}.log"
    follows = next((item.follows_from for item in findings if item.check in ("completeness", "ended")), "")
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
