"""What ranks must receive according to a cell's configuration, and packed params paired with it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import MicroBatch, PackedParams
from harness.core.packing.fields import FIRST_STAGE, LAST_STAGE, PADDING_MASK
from harness.core.run.records import SeenParams
from harness.features.hybrid.pattern import MIXERS
from harness.judge.locations import RankLocation


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The packed params and tokens that every rank of a replica must receive for one micro-batch."""

    batch: MicroBatch
    params: PackedParams | None


@dataclass(frozen=True, kw_only=True)
class DocumentPosition:
    """Where a document is packed in one step of a cell."""

    dp: int
    micro_batch: int
    first: bool  # no document precedes it in its row, so nothing can leak into it
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class ParamsSeen:
    """Packed params, and all locations that saw exactly these for one packed micro-batch."""

    params: SeenParams
    device: str | None
    truth: Truth
    expected: PackedParams
    places: list[RankLocation]


def attention_layers(config: CellConfig, stage: int, chunk: int) -> list[int]:
    """Return numbers of a chunk's layers that get packed params, from 1; prediction layers follow the model's last."""
    return layers_with(config, stage, chunk, MIXERS)


def layers_with(config: CellConfig, stage: int, chunk: int, letters: str) -> list[int]:
    """Return numbers of a chunk's layers that have one of these letters (ModelConfig.numbers_of).

    Prediction layers are built as the last layer of the model is.
    """
    model, layout = config.model, config.layout
    wanted = model.numbers_of(letters)
    layers = [layer for layer in layout.layers(model.spread, stage, chunk) if layer in wanted]
    if model.mtp and layout.ends(None, stage, chunk) and (model.layers in wanted or model.pattern):
        layers += range(model.layers + 1, model.layers + 1 + model.mtp.layers)
    return layers


def fields_used(config: CellConfig, stage: int, chunk: int) -> tuple[str, ...]:
    """Return the fields of a batch that a chunk uses.

    Prediction layers embed tokens and have a loss, MRoPE needs positions on every stage, and a data path that returns a
    mask of padding gives it to every stage.

    Without those that the data path or upstream's trainer does not give to the model: attention takes positions from
    cu_seqlens, and a loss of upstream takes logits.
    """
    mtp = config.model.mtp
    predicts = mtp is not None and config.layout.ends(mtp.stage, stage, chunk)
    embeds = (stage == 0 and chunk == 0) or predicts
    fields = (FIRST_STAGE if embeds else ()) + (LAST_STAGE if predicts or is_last(config, stage, chunk) else ())
    if config.model.vision and not embeds:
        fields = ("position_ids", *fields)
    if config.path.returns_padding_mask and config.trained_by_harness:
        fields = (*fields, PADDING_MASK)
    without = config.path.without if config.trained_by_harness else config.path.trained_without
    return tuple(field for field in fields if field not in without)


def is_last(config: CellConfig, stage: int, chunk: int) -> bool:
    """Return whether a chunk is the last of the model, the one with the loss."""
    return stage == config.layout.pp - 1 and chunk == config.layout.vpp - 1
