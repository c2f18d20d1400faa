"""Experts: the choice of routers, what experts take and drop, their losses and biases.

For E experts, k of them per token, n_i tokens and score sum p_i of expert i among T tokens, the loss of one set of
tokens is coefficient * E / (k T^2) * sum_i n_i p_i (Switch Transformer, arXiv 2101.03961; megatron.core.transformer.moe
.moe_utils.switch_load_balancing_loss_func). `aux_loss` takes all tokens of a micro-batch; `seq_aux_loss` takes each row
separately, with T their mean length, and averages over the rows. `global_aux_loss` takes the micro-batches of all
replicas that run at the same time; its n_i are means over these and the earlier ones of the step (arXiv 2501.11873).

The z-loss is coefficient * mean over tokens of log^2(sum of exponentials of the logits) (ST-MoE, arXiv 2202.08906;
moe_utils.z_loss_func).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Lane
from harness.core.packing.arithmetic import PAD
from harness.core.run.records import ChoiceSeen, ExpertBiasSeen, ExpertShare, FollowedSeen, RankRecord, RouterSeen
from harness.core.tolerances import NOISE_FACTOR
from harness.features.experts.config import GLOBAL_AUX, MoeConfig
from harness.features.optimizer import checks
from harness.judge.checks import gradients
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name, stated_ratio
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import counted_tokens
from harness.judge.locations import in_short, where_of
from harness.judge.stats.distance import beyond, bound_text, distance
from harness.upstreams.issue import ROWS_AS_ONE


@dataclass(kw_only=True)
class RouterWhole:
    """One layer's router for one micro-batch of a replica, over all its tp and cp ranks."""

    layer: int
    stage: int
    dp: int
    micro_batch: int
    real: list[ExpertShare]  # per row
    padding: list[ExpertShare]
    aux_loss: float | None = None
    aux_weighted: float | None = None  # its effect on gradients: with the schedule's scale and that of gradients
    z_loss: float | None = None
    z_weighted: float | None = None
    kept: list[int] | None = None  # with a capacity: tokens that each expert takes


def routers(evidence: CellEvidence) -> list[RouterWhole]:
    """Return every router, in order of layer, replica and micro-batch."""
    whole: dict[tuple[int, int, int], RouterWhole] = {}
    for _, record in sorted(evidence.records.items()):
        scales = [scale.dense for scale in record.gradient_scales if scale.dense is not None]
        # What upstream multiplies an auxiliary loss by in backward, and then all gradients: together its true weight.
        factor = (record.aux_scale or 0.0) * (scales[0] if scales else math.nan)
        for router in record.routers:
            key = (router.layer, record.place.dp, router.micro_batch)
            known = whole.get(key)
            if known is None:
                layer, dp, micro_batch = key
                known = whole[key] = RouterWhole(
                    layer=layer, stage=record.place.pp, dp=dp, micro_batch=micro_batch, real=[], padding=[]
                )
            known.real, known.padding = _added_rows(known.real, router.real), _added_rows(known.padding, router.padding)
            if router.kept is not None:
                known.kept = [a + b for a, b in zip(known.kept or [0] * len(router.kept), router.kept)]
            for value, weighted in (("aux_loss", "aux_weighted"), ("z_loss", "z_weighted")):
                share, effect = getattr(router, value), getattr(router, weighted)
                if share is not None and effect is not None:
                    # Each tp and cp rank holds the loss over its own tokens' scores: they add up to that of the
                    # micro-batch.
                    setattr(known, value, (getattr(known, value) or 0.0) + share)
                    setattr(known, weighted, (getattr(known, weighted) or 0.0) + effect * factor)
    return [whole[key] for key in sorted(whole)]


def _added_rows(left: Sequence[ExpertShare], right: Sequence[ExpertShare]) -> list[ExpertShare]:
    return [added(a, b) for a, b in zip(left, right)] if left else list(right)


def added(left: ExpertShare, right: ExpertShare) -> ExpertShare:
    """Return the share of two groups of tokens together."""
    return ExpertShare(
        tokens=left.tokens + right.tokens,
        counts=[a + b for a, b in zip(left.counts, right.counts)],
        scores=[a + b for a, b in zip(left.scores, right.scores)],
        squares=None if left.squares is None or right.squares is None else left.squares + right.squares,
    )


def counted_rows(router: RouterWhole, masked: bool) -> list[ExpertShare]:
    """Return per row the tokens in the statistics; `masked`: without padding, in releases that can leave it out."""
    return router.real if masked else _added_rows(router.real, router.padding)


def own_aux_loss(moe: MoeConfig, rows: Sequence[ExpertShare], *, kind: str | None = None) -> float:
    """Return the auxiliary loss of a micro-batch; `kind` overrides the configured one."""
    if (kind or moe.aux_loss) == "aux_loss":
        rows = [_total(rows)]
    tokens = sum(row.tokens for row in rows) / len(rows)
    if not tokens:
        return 0.0
    products = sum(count * score for row in rows for count, score in zip(row.counts, row.scores))
    return moe.aux_loss_coeff * moe.experts * products / (moe.topk * tokens * tokens) / len(rows)


def own_global_aux_loss(moe: MoeConfig, router: RouterWhole, wholes: Sequence[RouterWhole]) -> float:
    """Return the share of a replica's micro-batch in the auxiliary loss over all replicas.

    `wholes`: every router of the cell.
    """
    layer = [other for other in wholes if other.layer == router.layer and other.micro_batch <= router.micro_batch]
    counts = [0.0] * moe.experts
    for other in layer:
        share = _total(counted_rows(other, moe.padding_mask))
        counts = [a + b / (router.micro_batch + 1) for a, b in zip(counts, share.counts)]
    now = [other for other in layer if other.micro_batch == router.micro_batch]
    tokens = sum(_total(counted_rows(other, moe.padding_mask)).tokens for other in now)
    if not tokens:
        return 0.0
    scores = _total(counted_rows(router, moe.padding_mask)).scores
    products = sum(count * score for count, score in zip(counts, scores))
    return moe.aux_loss_coeff * moe.experts * products / (moe.topk * tokens * tokens)


def _total(rows: Sequence[ExpertShare]) -> ExpertShare:
    return reduce(added, rows)


def own_z_loss(moe: MoeConfig, rows: Sequence[ExpertShare]) -> float:
    """Return the z-loss of a micro-batch."""
    tokens = sum(row.tokens for row in rows)
    return moe.z_loss_coeff * sum(row.squares or 0.0 for row in rows) / max(tokens, 1)


def own_weight(evidence: CellEvidence, rows: Sequence[ExpertShare]) -> float:
    """Return the factor of a micro-batch's auxiliary loss, or z-loss, in gradients.

    With calculate_per_token_loss its tokens over those that divide gradients, else 1 over the number of micro-batches.
    """
    if evidence.cell.config.options.calculate_per_token_loss:
        return sum(row.tokens for row in rows) / max(counted_tokens(evidence, 0), 1)
    return 1.0 / sum(len(replica) for replica in evidence.plan[0])


# Comparison of a loss that acts on routers, at step 0, with the harness's own arithmetic: its value, and its weight in
# gradients.
@dataclass(frozen=True, kw_only=True)
class RouterLoss:
    """A loss of routers at step 0 and how to compute it; `value`, `weighted`: fields of RouterWhole."""

    name: str
    value: str
    weighted: str
    masked: bool  # whether padding is left out
    own: Callable[[RouterWhole], float]
    mistake: Callable[[RouterWhole, float], str] = lambda router, value_seen: ""  # the known one that gives this value
    together: Callable[[RouterWhole], list[RouterWhole]] = lambda router: [router]  # whose tokens share one loss


def wrong(evidence: CellEvidence, loss: RouterLoss) -> list[CheckFinding]:
    """Return the first value that differs; if there is none, the first layer with a wrong weight."""
    wholes = routers(evidence)
    return _values(evidence, loss, wholes) or _weights(evidence, loss, wholes)


def _values(evidence: CellEvidence, loss: RouterLoss, wholes: list[RouterWhole]) -> list[CheckFinding]:
    bound = evidence.own.aux_loss
    for router in wholes:
        expected, known = loss.own(router), getattr(router, loss.value)
        measured = math.nan if known is None else known
        if not math.isnan(measured) and not beyond(distance(measured, expected, bound), bound):
            continue
        why = loss.mistake(router, measured)
        off = distance(measured, expected, bound)
        value = "not recorded" if known is None else f"{measured:.9g}"
        message = (
            f"{loss.name} of layer {router.layer}, micro-batch {router.micro_batch}: {value}, the harness computes "
            f"{expected:.9g}, off by {off:.3g} > {bound_text(bound)}"
        )
        return [
            CheckFinding(
                fault_class=fault_classes.ROUTER,
                message=f"{message}; {why}" if why else message,
                where=_where(router) | {"micro_batch": router.micro_batch, "dp": router.dp},
                measured=off,
                bound=bound.value,
            )
        ]
    return []


def _weights(evidence: CellEvidence, loss: RouterLoss, wholes: list[RouterWhole]) -> list[CheckFinding]:
    """Compare sums over the micro-batches of a layer, since a wrong factor is the same in all."""
    bound = evidence.own.aux_loss
    layers: dict[int, tuple[RouterWhole, float, float]] = {}
    for router in wholes:
        _, weighted_sum, expected = layers.get(router.layer, (router, 0.0, 0.0))
        counted = [counted_rows(member, loss.masked) for member in loss.together(router)]
        expected += loss.own(router) * sum(own_weight(evidence, rows) for rows in counted)
        layers[router.layer] = (router, weighted_sum + (getattr(router, loss.weighted) or 0.0), expected)
    # `not <=` rather than `>`, so that NaN differs.
    differing = [layer for layer in layers.values() if not distance(layer[1], layer[2], bound) <= bound.value]
    if not differing:
        return []
    router, weighted_sum, expected = differing[0]
    ratio = weighted_sum / expected if expected else math.nan
    name = ratio_name(ratio, factors_of(evidence, 0), evidence.tolerances.ratio_screen)
    off = distance(weighted_sum, expected, bound)
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {name}" if name else fault_classes.GRADIENT_REDUCTION,
            message=f"gradients of {loss.name} in layer {router.layer}: weighted sum {weighted_sum:.9g}, the harness "
            f"computes {expected:.9g}, off by {off:.3g} > {bound_text(bound)}; {stated_ratio(name or ratio)} "
            f"{len(differing)} of {len(layers)} layers differ",
            where=_where(router) | ({"ratio": name} if name else {}),
            measured=off,
            bound=bound.value,
        )
    ]


def _where(router: RouterWhole) -> dict[str, int]:
    return {"stage": router.stage, "layer": router.layer, "step": 0}


@check(Lane.NUMERICS)
def router_choice(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the oracle's scores allow what routers chose, and its weights what experts drop, up to rounding.

    In all steps and evaluations; experts drop what is beyond their capacity. By position nothing is rounded.
    """
    record = evidence.oracle.record if evidence.oracle else None
    for followed in record.followed if record else ():
        bound = _bound(evidence, followed)
        if not followed.shortfall > bound:
            continue
        # Where rounding decides the weights, it decides the scores too.
        if followed.rounding and evidence.bound("grad_norm", _updates(evidence, followed.step)) is None:
            continue
        # Other weights have other scores; the check of what made them wrong names the cause.
        if followed.step and _wrong_before(evidence, followed.step):
            return []
        layers = evidence.cell.config.model.layers
        stage = (
            evidence.layout.stage_of_layer(layers, followed.layer) if followed.layer <= layers else evidence.last_stage
        )
        whose = "padding" if followed.document == PAD else f"token {followed.position} of document {followed.document}"
        when = evidence.cell.config.train.steps
        of_step = f"step {followed.step}" if followed.step < when else f"evaluation {followed.step - when}"
        where = {"stage": stage, "layer": followed.layer, "step": min(followed.step, when), "expert": followed.expert}
        if followed.document != PAD:
            where |= {"document": followed.document, "token": followed.position}
        return [
            CheckFinding(
                fault_class=fault_classes.ROUTER,
                message=f"in {of_step} layer {followed.layer} {_what(evidence, followed, whose)}",
                where=where,
                measured=followed.shortfall,
                bound=bound,
            )
        ]
    return []


def _what(evidence: CellEvidence, followed: FollowedSeen, whose: str) -> str:
    moe, bound = evidence.cell.config.model.moe, _bound(evidence, followed)
    if not followed.dropped:
        return (
            f"sends {whose} to expert {followed.expert}, whose score is {followed.shortfall:.3g} below that of an "
            f"expert left out, by the oracle; rounding explains {bound:.2g}"
        )
    drops = f"drops {whose} from expert {followed.expert}, though"
    if moe is not None and moe.drop_policy == "position":
        return f"{drops} it comes {followed.shortfall:.0f} slots before one that the expert takes"
    return (
        f"{drops} its weight is {followed.shortfall:.3g} above that of a slot that the expert takes, by the oracle; "
        f"rounding explains {bound:.2g}"
    )


def _bound(evidence: CellEvidence, followed: FollowedSeen) -> float:
    # After an update the weights differ by rounding too, which grows from step to step.
    return (evidence.growth() if followed.step else NOISE_FACTOR) * followed.rounding


def _wrong_before(evidence: CellEvidence, step: int) -> bool:
    """Return whether gradients or updates before a step are wrong already, so that its weights are."""
    earlier = (gradients.parameter_gradients, checks.first_update, gradients.grad_norm)
    return any(finding.where.get("step", 0) < step for before in earlier for finding in before(evidence))


def _updates(evidence: CellEvidence, step: int) -> int:
    """Return the updates that the last gradient norm recorded before a step, or an evaluation, shows."""
    config = evidence.cell.config
    later = step - config.train.steps
    return step if later < 0 else config.evaluated[later] - 1


@check(Lane.NUMERICS)
def capacity(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that with a capacity every expert takes exactly as many tokens as fit, of those that choose it.

    A rank's experts have a capacity for that rank's tokens: ceil(tokens x topk / experts x factor)
    (moe_utils.get_capacity, apply_router_token_dropping). Where the oracle computes the cell, it is judged in all steps
    and evaluations, and `router_choice` judges which tokens are dropped. Else it is judged in step 0.
    """
    moe, steps = evidence.cell.config.model.moe, evidence.cell.config.train.steps
    if moe is None or moe.capacity_factor is None:
        return []
    follows = evidence.oracle is not None and evidence.oracle.record is not None
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        findings = (*_by_choices(record, moe, steps), *(() if follows else _by_logits(record, moe, steps)))
        if findings:
            return [findings[0]]
    return []


def _by_choices(record: RankRecord, moe: MoeConfig, steps: int) -> Iterator[CheckFinding]:
    for choice in sorted(record.choices, key=lambda seen: (seen.step, seen.layer, seen.micro_batch)):
        taken, fitting = (
            _counts(choice.taken or [], moe),
            _fitting(moe, _counts(choice.experts, moe), len(choice.experts)),
        )
        # The counts alone would not show an expert that takes the wrong tokens in the right number.
        others = sum(len({*took} - {*own}) for own, took in zip(choice.experts, choice.taken or []))
        if taken != fitting:
            what = f"tokens that experts take: {in_short(taken, fitting, 'their capacity gives')}"
            yield _capacity_finding(record, choice, what, taken, fitting, steps)
        elif others and not moe.pad_to_capacity:
            yield _capacity_finding(
                record, choice, f"experts take {others} tokens that did not choose them", others, 0, steps
            )


def _by_logits(record: RankRecord, moe: MoeConfig, steps: int) -> Iterator[CheckFinding]:
    """Judge by the rank's own arithmetic, where the oracle does not compute the cell."""
    for router in sorted(record.routers, key=lambda router: (router.layer, router.micro_batch)):
        fitting = own_kept(moe, router)
        if router.kept != fitting:
            what = f"tokens that experts take: {in_short(router.kept, fitting, 'their capacity gives')}"
            yield _capacity_finding(record, router, what, router.kept, fitting, steps)


def _counts(slots: list[list[int]], moe: MoeConfig) -> list[int]:
    counts = [0] * moe.experts
    for experts in slots:
        for expert in experts:
            counts[expert] += 1
    return counts


def own_kept(moe: MoeConfig, router: RouterSeen) -> list[int]:
    """Return the tokens of a rank that each expert takes."""
    share = reduce(added, [*router.real, *router.padding])
    return _fitting(moe, share.counts, share.tokens)


def _fitting(moe: MoeConfig, chosen: list[int], tokens: int) -> list[int]:
    """Return how many of the tokens that chose it each expert takes, among those of a rank."""
    # In this order of operations, as upstream's get_capacity: another order rounds up elsewhere.
    capacity = math.ceil(tokens * moe.topk / moe.experts * (moe.capacity_factor or 0.0))
    most = min(capacity, tokens)
    return [most if moe.pad_to_capacity else min(count, most) for count in chosen]


def _capacity_finding(
    record: RankRecord, seen: ChoiceSeen | RouterSeen, what: str, measured: object, bound: object, steps: int
) -> CheckFinding:
    step = seen.step if isinstance(seen, ChoiceSeen) else 0
    when = "" if step == 0 else f", step {step}" if step < steps else f", evaluation {step - steps}"
    at = where_of(record.place, rank=record.rank, step=min(step, steps), layer=seen.layer, micro_batch=seen.micro_batch)
    return CheckFinding(
        fault_class=fault_classes.ROUTER,
        message=f"layer {seen.layer}, micro-batch {seen.micro_batch}, rank {record.rank}{when}: {what}",
        where=at,
        measured=measured,
        bound=bound,
    )


@check(Lane.NUMERICS)
def aux_loss(evidence: CellEvidence) -> list[CheckFinding]:
    """Check the auxiliary loss of every router (step 0) and its weight in gradients by the harness's own arithmetic."""
    moe = evidence.cell.config.model.moe
    if moe is None or not moe.balanced or not evidence.first_step_whole:
        return []
    loss = RouterLoss(
        name=moe.aux_loss,
        value="aux_loss",
        weighted="aux_weighted",
        masked=moe.padding_mask,
        own=lambda router: own_aux_loss(moe, counted_rows(router, moe.padding_mask)),
        mistake=partial(_as_if, evidence, moe),
    )
    return wrong(evidence, _over_replicas(evidence, moe, loss) if moe.aux_loss == GLOBAL_AUX else loss)


def _over_replicas(evidence: CellEvidence, moe: MoeConfig, loss: RouterLoss) -> RouterLoss:
    """Return the loss over all replicas, of which each computes its share."""
    wholes = routers(evidence)

    def together(router: RouterWhole) -> list[RouterWhole]:
        place = (router.layer, router.micro_batch)
        return [other for other in wholes if (other.layer, other.micro_batch) == place]

    own = partial(own_global_aux_loss, moe, wholes=wholes)
    return replace(loss, own=own, mistake=lambda router, value: "", together=together)


def _as_if(evidence: CellEvidence, moe: MoeConfig, router: RouterWhole, measured: float) -> str:
    """Return the known mistake that gives this value, or ''."""
    bound = evidence.own.aux_loss
    rows, padded_rows = counted_rows(router, moe.padding_mask), counted_rows(router, False)
    mistakes = {
        "that is the value with padding tokens counted": own_aux_loss(moe, padded_rows),
        f"that is the value of its {len(rows)} {ROWS_AS_ONE}": own_aux_loss(moe, rows, kind="aux_loss"),
        f"that is the value of its {len(rows)} {ROWS_AS_ONE}, with padding tokens counted": own_aux_loss(
            moe, padded_rows, kind="aux_loss"
        ),
    }
    return next((why for why, value in mistakes.items() if distance(measured, value, bound) <= bound.value), "")


@check(Lane.NUMERICS)
def z_loss(evidence: CellEvidence) -> list[CheckFinding]:
    """Check the z-loss of every router (step 0) and its weight in gradients by the harness's own arithmetic."""
    moe = evidence.cell.config.model.moe
    if moe is None or not moe.z_loss_coeff or not evidence.first_step_whole:
        return []
    loss = RouterLoss(
        name="z_loss",
        value="z_loss",
        weighted="z_weighted",
        masked=moe.padding_mask,
        own=lambda router: own_z_loss(moe, counted_rows(router, moe.padding_mask)),
    )
    return wrong(evidence, loss)


_ROUNDING = 1e-5  # relative to the rate by which biases change, of float32
_ROUNDING_BF16 = 2.0**-8  # upstream's Float16Module casts the counts of tokens, and with them the change of a bias


@check(Lane.NUMERICS)
def expert_bias(evidence: CellEvidence) -> list[CheckFinding]:
    """Check the bias of every expert after every step: equal on all ranks, by its rule, and equal to the reference's.

    The rule: a bias grows by its rate if its expert got fewer tokens in the step than the mean of all experts, and
    shrinks if it got more (arXiv 2408.15664; moe_utils.get_updated_expert_bias).
    """
    moe = evidence.cell.config.model.moe
    if moe is None or not moe.expert_bias:
        return []
    first: dict[tuple[int, int], tuple[RankRecord, ExpertBiasSeen]] = {}
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for bias in record.expert_biases:
            first_record, first_seen = first.setdefault((bias.step, bias.layer), (record, bias))
            if bias.values != first_seen.values:
                return [_bias_finding(record, bias, first_seen.values, f"rank {first_record.rank} has")]
    # No key is in both: the rule judges step 0, the reference later ones.
    expected = _by_rule(evidence, moe) | _of_reference(evidence)
    for place, (record, bias) in sorted(first.items(), key=lambda entry: entry[0]):
        if place in expected and _differ(bias.values, expected[place], evidence.cell.config):
            whose = f"the {evidence.origin} has" if place[0] else "their tokens give"
            return [_bias_finding(record, bias, expected[place], whose)]
    return []


def _by_rule(evidence: CellEvidence, moe: MoeConfig) -> dict[tuple[int, int], list[float]]:
    """Return (step 0, layer) -> biases after it, from the tokens that the ranks recorded."""
    if not evidence.first_step_whole:
        return {}
    counts: dict[int, list[int]] = {}
    for router in routers(evidence):
        known = counts.get(router.layer, [0] * moe.experts)
        counts[router.layer] = [a + b for a, b in zip(known, _counted(router, moe))]
    rounding = 0.0 if evidence.cell.config.dtype == "fp32" else _ROUNDING_BF16
    return {(0, layer): [_by_tokens(own, tokens, moe, rounding) for own in tokens] for layer, tokens in counts.items()}


def _by_tokens(own: int, tokens: list[int], moe: MoeConfig, rounding: float) -> float:
    """Return the bias of an expert that got `own` tokens; NaN where rounding decides whether that is above the mean."""
    mean = sum(tokens) / moe.experts
    # In bf16 the counts are rounded before they are compared with their mean.
    if own != mean and abs(own - mean) <= rounding * (own + mean):
        return math.nan
    return moe.bias_rate * ((own < mean) - (own > mean))


def _counted(router: RouterWhole, moe: MoeConfig) -> list[int]:
    """Return the tokens that each expert got; with a capacity, that it took."""
    if router.kept is not None:
        return router.kept
    rows = counted_rows(router, moe.padding_mask)
    return [sum(counts) for counts in zip(*(row.counts for row in rows))]


def _of_reference(evidence: CellEvidence) -> dict[tuple[int, int], list[float]]:
    """Return (later step, layer) -> biases of the oracle, up to where rounding moves a token to another expert.

    That is seen in the oracle's own second training.
    """
    if evidence.reference is None or not evidence.by_oracle:
        return {}
    floors = evidence.reference.later_noise.get("expert_bias", {})
    biases = (seen for record in evidence.reference.records.values() for seen in record.expert_biases)
    return {
        (bias.step, bias.layer): bias.values
        for bias in biases
        if bias.step and (bias.step not in floors or not floors[bias.step].value)
    }


def _differ(biases: list[float], expected: list[float], config: CellConfig) -> bool:
    assert config.model.moe is not None
    most = (_ROUNDING if config.dtype == "fp32" else _ROUNDING_BF16) * config.model.moe.bias_rate
    return any(not abs(a - b) <= most for a, b in zip(biases, expected) if not math.isnan(b))


def _bias_finding(record: RankRecord, bias: ExpertBiasSeen, expected: list[float], whose: str) -> CheckFinding:
    values, wanted = (", ".join(f"{value:.6g}" for value in numbers) for numbers in (bias.values, expected))
    return CheckFinding(
        fault_class=fault_classes.ROUTER,
        message=f"biases of the experts of layer {bias.layer} after step {bias.step} on rank {record.rank}: {values}; "
        f"{whose} {wanted}",
        where=where_of(record.place, rank=record.rank, step=bias.step, layer=bias.layer),
        measured=bias.values,
        bound=expected,
    )
