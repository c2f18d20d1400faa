"""Routers of a cell, assembled from the ranks' shares, and the harness's own computation of their losses.

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from harness.core.cell.model import MoeConfig
from harness.core.run.records import ExpertShare
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import counted_tokens


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
    """Every router, in order of layer, replica and micro-batch."""
    whole: dict[tuple[int, int, int], RouterWhole] = {}
    for _, record in sorted(evidence.records.items()):
        scales = [seen.dense for seen in record.gradient_scales if seen.dense is not None]
        factor = (record.aux_scale or 0.0) * (scales[0] if scales else math.nan)
        for seen in record.routers:
            key = (seen.layer, record.place.dp, seen.micro_batch)
            known = whole.get(key)
            if known is None:
                layer, dp, micro_batch = key
                known = whole[key] = RouterWhole(
                    layer=layer, stage=record.place.pp, dp=dp, micro_batch=micro_batch, real=[], padding=[]
                )
            known.real, known.padding = _added_rows(known.real, seen.real), _added_rows(known.padding, seen.padding)
            if seen.kept is not None:
                known.kept = [a + b for a, b in zip(known.kept or [0] * len(seen.kept), seen.kept)]
            for value, weighted in (("aux_loss", "aux_weighted"), ("z_loss", "z_weighted")):
                share, effect = getattr(seen, value), getattr(seen, weighted)
                if share is not None and effect is not None:
                    setattr(known, value, (getattr(known, value) or 0.0) + share)
                    setattr(known, weighted, (getattr(known, weighted) or 0.0) + effect * factor)
    return [whole[key] for key in sorted(whole)]


def _added_rows(left: Sequence[ExpertShare], right: Sequence[ExpertShare]) -> list[ExpertShare]:
    return [added(a, b) for a, b in zip(left, right)] if left else list(right)


def added(left: ExpertShare, right: ExpertShare) -> ExpertShare:
    """The share of two groups of tokens together."""
    return ExpertShare(
        tokens=left.tokens + right.tokens,
        counts=[a + b for a, b in zip(left.counts, right.counts)],
        scores=[a + b for a, b in zip(left.scores, right.scores)],
        squares=None if left.squares is None or right.squares is None else left.squares + right.squares,
    )


def counted_rows(router: RouterWhole, masked: bool) -> list[ExpertShare]:
    """Per row the tokens in the statistics; `masked`: without padding, in releases that can leave it out."""
    return router.real if masked else _added_rows(router.real, router.padding)


def own_aux_loss(moe: MoeConfig, rows: Sequence[ExpertShare], *, kind: str | None = None) -> float:
    """The auxiliary loss of a micro-batch; `kind` overrides the configured one."""
    if (kind or moe.aux_loss) == "aux_loss":
        rows = [_total(rows)]
    tokens = sum(row.tokens for row in rows) / len(rows)
    if not tokens:
        return 0.0
    products = sum(count * score for row in rows for count, score in zip(row.counts, row.scores))
    return moe.aux_loss_coeff * moe.experts * products / (moe.topk * tokens * tokens) / len(rows)


def own_global_aux_loss(moe: MoeConfig, router: RouterWhole, wholes: Sequence[RouterWhole]) -> float:
    """The share of a replica's micro-batch in the auxiliary loss over all replicas.

    `wholes`: every router of the cell.
    """
    layer = [one for one in wholes if one.layer == router.layer and one.micro_batch <= router.micro_batch]
    counts = [0.0] * moe.experts
    for one in layer:
        share = _total(counted_rows(one, moe.padding_mask))
        counts = [a + b / (router.micro_batch + 1) for a, b in zip(counts, share.counts)]
    now = [one for one in layer if one.micro_batch == router.micro_batch]
    tokens = sum(_total(counted_rows(one, moe.padding_mask)).tokens for one in now)
    if not tokens:
        return 0.0
    scores = _total(counted_rows(router, moe.padding_mask)).scores
    products = sum(count * score for count, score in zip(counts, scores))
    return moe.aux_loss_coeff * moe.experts * products / (moe.topk * tokens * tokens)


def _total(rows: Sequence[ExpertShare]) -> ExpertShare:
    return reduce(added, rows)


def own_z_loss(moe: MoeConfig, rows: Sequence[ExpertShare]) -> float:
    """The z-loss of a micro-batch."""
    tokens = sum(row.tokens for row in rows)
    return moe.z_loss_coeff * sum(row.squares or 0.0 for row in rows) / max(tokens, 1)


def own_weight(evidence: CellEvidence, rows: Sequence[ExpertShare]) -> float:
    """The factor of a micro-batch's auxiliary loss, or z-loss, in gradients.

    With calculate_per_token_loss its tokens over those that divide gradients, else 1 over the number of micro-batches.
    """
    if evidence.cell.config.options.calculate_per_token_loss:
        return sum(row.tokens for row in rows) / max(counted_tokens(evidence, 0), 1)
    return 1.0 / sum(len(replica) for replica in evidence.plan[0])
