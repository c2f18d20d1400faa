"""Records of routers and prediction heads for the simulator's cells."""

from __future__ import annotations

from dataclasses import replace

from harness.core.cell.model import ModelConfig
from harness.core.packing.arithmetic import PAD
from harness.core.run.records import ChoiceSeen, DocumentLoss, ExpertShare, MtpSeen, RouterSeen
from harness.features.experts.checks import RouterWhole, counted_rows, own_aux_loss, own_weight, own_z_loss
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for

LAYERS = 2


def share(tokens: int, expert: int) -> ExpertShare:
    """`tokens` tokens that all go to `expert` and its neighbour, of four."""
    counts = [tokens if number in (expert % 4, (expert + 1) % 4) else 0 for number in range(4)]
    return ExpertShare(tokens=tokens, counts=counts, scores=[0.1 * tokens + 0.3 * count for count in counts])


def with_routers(
    data_path: str = "reference",
    *,
    aux_loss: str = "aux_loss",
    masked: bool = False,
    z_loss_coeff: float = 0.0,
    **layout: int,
) -> CellEvidence:
    """A cell with experts whose ranks recorded their routers correctly, each tp x cp rank its part."""
    moe = MoeConfig(aux_loss=aux_loss, padding_mask=masked, z_loss_coeff=z_loss_coeff)
    config = replace(config_of(data_path, **layout), model=ModelConfig(layers=LAYERS, moe=moe))
    evidence = evidence_for(config)
    for record in evidence.records.values():
        record.aux_scale = 1.0 if moe.balanced or moe.z_loss_coeff else None
        for number, truth in enumerate(evidence.plan[0][record.place.dp]):
            for layer in evidence.layout.layers(LAYERS, record.place.pp):
                record.routers.append(_seen(evidence, layer, number, truth.batch.rows))
        for step in evidence.steps:
            numbers = range(len(evidence.plan[step][record.place.dp]))
            record.choices += [
                ChoiceSeen(step=step, layer=layer, micro_batch=number, experts=[[0, 1]])
                for layer in evidence.layout.layers(LAYERS, record.place.pp)
                for number in numbers
            ]
    return evidence


def _seen(evidence: CellEvidence, layer: int, number: int, rows: tuple[object, ...]) -> RouterSeen:
    """The router record of one rank; all ranks have equal parts, so a whole is a part times their number."""
    config = evidence.cell.config
    moe, parts = config.model.moe, evidence.layout.tp * evidence.layout.cp
    assert moe is not None
    seen = RouterSeen(
        layer=layer,
        micro_batch=number,
        real=[share(5 + number, layer + n) for n in range(len(rows))],
        padding=[share(2 + n, layer + 2) for n in range(len(rows))],
    )
    if moe.z_loss_coeff:
        for row in (*seen.real, *seen.padding):
            row.squares = 2.0 * row.tokens + layer
    whole = RouterWhole(layer=layer, stage=0, dp=0, micro_batch=number, real=[], padding=[])
    whole.real = [_times(row, parts) for row in seen.real]
    whole.padding = [_times(row, parts) for row in seen.padding]
    counted = counted_rows(whole, moe.padding_mask)
    reduction = sum(truth.batch.loss_tokens for replica in evidence.plan[0] for truth in replica)
    weight = own_weight(evidence, counted) * reduction / parts
    if moe.balanced:
        seen.aux_loss = own_aux_loss(moe, counted) / parts
        seen.aux_weighted = own_aux_loss(moe, counted) * weight
    if moe.z_loss_coeff:
        seen.z_loss = own_z_loss(moe, counted) / parts
        seen.z_weighted = own_z_loss(moe, counted) * weight
    return seen


def _times(row: ExpertShare, parts: int) -> ExpertShare:
    return ExpertShare(
        tokens=row.tokens * parts,
        counts=[count * parts for count in row.counts],
        scores=[score * parts for score in row.scores],
        squares=None if row.squares is None else row.squares * parts,
    )


def with_predictions(data_path: str = "reference", depths: int = 1, **layout: int) -> CellEvidence:
    """A cell with prediction heads, and its control, that recorded the plan's tokens with loss 2 each."""
    config = replace(config_of(data_path, **layout), model=ModelConfig(layers=LAYERS, mtp=MtpConfig(layers=depths)))
    evidence = evidence_for(config)
    assert evidence.control is not None
    for item in (evidence, evidence.control):
        for record in item.records.values():
            if record.place.pp != item.last_stage or record.place.cp:
                continue
            for number, truth in enumerate(item.plan[0][record.place.dp]):
                for depth in range(1, depths + 1):
                    counts = {
                        placed.document.index: max(placed.document.length - depth, 0)
                        for placed in truth.batch.placed
                        if not placed.document.masked
                    }
                    documents = {
                        document: DocumentLoss(loss_sum=2.0 * count, tokens=count)
                        for document, count in counts.items()
                        if count and document != PAD
                    }
                    record.mtp.append(MtpSeen(depth=depth, micro_batch=number, documents=documents))
    return evidence
