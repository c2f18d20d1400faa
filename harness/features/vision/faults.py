"""Faults in vision models. Their cells run on the stack of upstream's trainers, which has Megatron-Bridge."""

from __future__ import annotations

from functools import partial

from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Lane
from harness.core.packing.documents import mix
from harness.faults.spec import CP, ONE, STACK_OF_TRAINERS, TRAIN, FaultSpec
from harness.features.vision.config import VisionConfig
from harness.upstreams.megatron_bridge.spec import IN_BATCH

_vision_spec = partial(
    FaultSpec,
    fault_class="model",
    stack=STACK_OF_TRAINERS[1],
    data_path=IN_BATCH.name,
    micro_batch_size=2,
    model=ModelConfig(layers=2, vision=VisionConfig()),
    documents=mix("images", TRAIN.seq_length, 2),
)


_positions_spec = partial(
    _vision_spec,
    lane=Lane.METADATA,
    checks=("tokens_placed",),
)


VISION: tuple[FaultSpec, ...] = (
    _positions_spec(
        name="height-and-width-swapped",
        summary="positions of image tokens count columns as rows, and rows as columns",
        modelled_on="B12: the order of axes in NVIDIA-NeMo/Megatron-Bridge get_rope_index",
        layout=ONE,
        why="one rank with an image that is not square",
        where={"field": "position_ids"},
    ),
    _positions_spec(
        name="positions-run-on-over-documents",
        summary="positions along the three axes do not start again at each document of a packed row",
        modelled_on="B12: NVIDIA-NeMo/Megatron-Bridge 9b51264b1 (PR 4532)",
        layout=ONE,
        why="one rank with two documents in a row",
        where={"field": "position_ids", "token": 0},
    ),
    _positions_spec(
        name="positions-of-the-next-cp-rank",
        summary="each context-parallel rank gets the positions of the tokens that the next rank has",
        modelled_on="B13: NVIDIA-NeMo/Megatron-Bridge aba4fb2bf (PR 2932), slices of rows in a vision model",
        layout=CP,
        why="cp 1 splits nothing",
        where={"field": "position_ids"},
    ),
    _vision_spec(
        name="sections-of-time-alone",
        summary="all rotary frequencies follow the time axis, those of height and width too",
        modelled_on="B12: mrope_section, which must match the checkpoint of the model",
        layout=ONE,
        why="one rank with an image",
        lane=Lane.NUMERICS,
        checks=("activations",),
        where={"stage": 0, "layer": 1},
    ),
    _vision_spec(
        name="features-of-the-next-token",
        summary="each image token gets the feature of the one before it",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge PR 5053: features by rank-local image tokens",
        layout=Layout(tp=2),
        why="one rank with an image would do; on two it is named as wrong on the stage, not on a rank",
        lane=Lane.NUMERICS,
        checks=("activations",),
        where={"stage": 0, "layer": 0},
    ),
)
