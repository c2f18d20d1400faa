"""Faults of class model with vision: positions along three axes, their rotary frequencies, features of images."""

from __future__ import annotations

from functools import partial

from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.data_paths.megatron_bridge import IN_BATCH
from harness.core.outcomes import Lane
from harness.core.packing.documents import mix
from harness.core.vision import VisionConfig
from harness.plan.faults.spec import TRAIN, FaultSpec
from harness.plan.faults.upstream.trainers import STACK

_spec = partial(
    FaultSpec,
    fault_class="model",
    stack=STACK[1],
    data_path=IN_BATCH.name,
    micro_batch_size=2,
    model=ModelConfig(layers=2, vision=VisionConfig()),
    documents=mix("images", TRAIN.seq_length, 2),
)
_positions = partial(
    _spec,
    lane=Lane.METADATA,
    checks=("tokens_placed",),
)
VISION: tuple[FaultSpec, ...] = (
    _positions(
        name="height-and-width-swapped",
        summary="positions of image tokens count columns as rows, and rows as columns",
        modelled_on="B12: the order of axes in NVIDIA-NeMo/Megatron-Bridge get_rope_index",
        layout=Layout(),
        why="one rank with an image that is not square",
        where={"field": "position_ids"},
    ),
    _positions(
        name="positions-run-on-over-documents",
        summary="positions along the three axes do not start again at each document of a packed row",
        modelled_on="B12: NVIDIA-NeMo/Megatron-Bridge 9b51264b1 (PR 4532)",
        layout=Layout(),
        why="one rank with two documents in a row",
        where={"field": "position_ids", "token": 0},
    ),
    _positions(
        name="positions-of-the-next-cp-rank",
        summary="each context-parallel rank gets the positions of the tokens that the next rank has",
        modelled_on="B13: NVIDIA-NeMo/Megatron-Bridge aba4fb2bf (PR 2932), slices of rows in a vision model",
        layout=Layout(cp=2),
        why="cp 1 splits nothing",
        where={"field": "position_ids"},
    ),
    _spec(
        name="sections-of-time-alone",
        summary="all rotary frequencies follow the time axis, those of height and width too",
        modelled_on="B12: mrope_section, which must match the checkpoint of the model",
        layout=Layout(),
        why="one rank with an image",
        lane=Lane.NUMERICS,
        checks=("activations",),
        where={"stage": 0, "layer": 1},
    ),
    _spec(
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
