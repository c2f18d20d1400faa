"""Parallel layout of a cell: sizes, and the coordinates of ranks.

Rank order is Megatron's default `tp-cp-ep-dp-pp`
(megatron.core.parallel_state.initialize_model_parallel): tp varies fastest, pp slowest; or `tp-cp-ep-pp-dp`.
Layers are numbered from 1 over the whole model, as Megatron's `layer_number` does.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from harness.core.cell.stages import DECODER, PREDICTION, checked_stages, split_over_stages, stages_of
from harness.core.setting import count, labels, setting

# The number of layers, split over model chunks by the layout; or the number in each chunk.
Layers = int | tuple[int, ...]
_MOST_LAYERS = 1_024


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Coordinates of one rank, from 0."""

    tp: int
    cp: int
    dp: int
    pp: int

    def __str__(self) -> str:
        return f"stage {self.pp}, tp {self.tp}, cp {self.cp}, dp {self.dp}"


def _size(doc: str, *, le: int = 4_096, **facts: Any) -> Any:
    return setting(1, doc=doc, ge=1, le=le, **facts)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the parallel dimensions. `dp` counts replicas; expert parallel `ep` divides dp * cp."""

    tp: int = _size("Tensor parallel size.", upstream="tensor_model_parallel_size", always=True)
    pp: int = _size("Pipeline parallel size.", upstream="pipeline_model_parallel_size", always=True)
    cp: int = _size("Context parallel size.", upstream="context_parallel_size", always=True)
    dp: int = _size("Data parallel replicas.", aliases=("data_parallel_size",))
    ep: int = _size("Expert parallel size.", upstream="expert_model_parallel_size")
    etp: int = setting(
        0,
        doc="Expert tensor parallel size, over which the weights of each expert are split; 0: that of tp.",
        ge=0,
        le=4_096,
        upstream="expert_tensor_parallel_size",
        later=True,
    )
    vpp: int = _size("Model chunks per pipeline stage.", upstream="virtual_pipeline_model_parallel_size", le=1_024)
    pp_before_dp: bool = setting(
        False,
        doc="The stages of a replica are neighbours: ranks have the order tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp.",
        aliases=("use_tp_pp_dp_mapping",),
        label="pp-before-dp",
        later=True,
    )
    first_stage_layers: int | None = count(
        None,
        "Layers of the first pipeline stage; the stages without a number of their own share the rest evenly.",
        le=_MOST_LAYERS,
        upstream="num_layers_in_first_pipeline_stage",
        aliases=("decoder_first_pipeline_num_layers",),
        label="first{}",
        later=True,
    )
    last_stage_layers: int | None = count(
        None,
        "Layers of the last pipeline stage.",
        le=_MOST_LAYERS,
        upstream="num_layers_in_last_pipeline_stage",
        aliases=("decoder_last_pipeline_num_layers",),
        label="last{}",
        later=True,
    )
    embedding_as_layer: bool = setting(
        False,
        doc="The embedding counts as a layer where layers are split over stages.",
        upstream="account_for_embedding_in_pipeline_split",
        label="embedding-as-layer",
        later=True,
    )
    loss_as_layer: bool = setting(
        False,
        doc="The output layer and the loss count as one, likewise.",
        upstream="account_for_loss_in_pipeline_split",
        label="loss-as-layer",
        later=True,
    )
    stages: str | None = setting(
        None,
        doc="What each model chunk holds, [a letter each](models.md#pipeline-stages); if omitted, layers are split "
        "evenly.",
        check=checked_stages,
        upstream="pipeline_model_parallel_layout",
        values='letters, e.g. `"Ett|t*3|tL"`',
        label="stages-{}",
        later=True,
    )
    sp: bool = setting(
        False, doc="Sequence parallel; auto: on exactly when tp > 1.", upstream="sequence_parallel", auto=True
    )

    def name_parts(self) -> list[str]:
        """Return parts of a cell's name: sizes, and `nosp` where sequence parallel could be on but is off."""
        shown = "-".join(map(_chunk_name, stages_of(self.stages))) if self.stages else None
        sizes = labels(replace(self, sp=False, stages=shown))
        return [*sizes, "nosp"] if self.tp > 1 and not self.sp else sizes

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks over which the weights of an expert are split."""
        return self.etp or self.tp

    def expert_shard(self, place: Coordinates) -> int | None:
        """Return the rank's expert tensor parallel rank, which varies fastest; None if it is the tensor parallel
        rank.
        """
        return None if self.expert_tp == self.tp else self.rank(place) % self.expert_tp

    def coordinates(self, rank: int) -> Coordinates:
        """Return the coordinates of a global rank; ValueError outside 0 .. world_size - 1."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside 0..{self.world_size - 1}")
        rank, tp = divmod(rank, self.tp)
        rank, cp = divmod(rank, self.cp)
        dp, pp = divmod(rank, self.pp) if self.pp_before_dp else divmod(rank, self.dp)[::-1]
        return Coordinates(tp=tp, cp=cp, dp=dp, pp=pp)

    def rank(self, place: Coordinates) -> int:
        """Return the global rank at the coordinates; the inverse of `coordinates`."""
        outer = place.dp * self.pp + place.pp if self.pp_before_dp else place.pp * self.dp + place.dp
        return (outer * self.cp + place.cp) * self.tp + place.tp

    @property
    def splits_unevenly(self) -> bool:
        """Whether the layout itself says how layers are split over stages."""
        sizes = (self.first_stage_layers, self.last_stage_layers, self.stages)
        return any(size is not None for size in sizes) or self.embedding_as_layer or self.loss_as_layer

    @property
    def split_evenly(self) -> Layout:
        """The layout with layers split evenly over stages."""
        counted = {"embedding_as_layer": False, "loss_as_layer": False}
        return replace(self, first_stage_layers=None, last_stage_layers=None, stages=None, **counted)

    def chunk_sizes(self, layers: Layers) -> tuple[int, ...]:
        """Return the layers of each model chunk, in the order in which a token passes them."""
        count = self.pp * self.vpp
        if not isinstance(layers, int):
            return layers if count > 1 else (sum(layers),)
        if count == 1:
            return (layers,)
        if self.stages:
            return tuple(chunk.count(DECODER) for chunk in stages_of(self.stages))
        return split_over_stages(
            layers,
            self.pp,
            self.vpp,
            first=self.first_stage_layers,
            last=self.last_stage_layers,
            embedding=self.embedding_as_layer,
            loss=self.loss_as_layer,
        )

    def layers(self, layers: Layers, pp: int, chunk: int = 0) -> range:
        """Return the global layer numbers (from 1) of one model chunk of a stage.

        Interleaved schedules give chunk c of stage p the block c * pp_size + p
        (megatron.core.transformer.transformer_layer.get_transformer_layer_offset).
        """
        sizes, index = self.chunk_sizes(layers), chunk * self.pp + pp
        first = sum(sizes[:index])
        return range(first + 1, first + sizes[index] + 1)

    def chunk_of_layer(self, layers: Layers, layer: int) -> int:
        """Model chunk that holds the global layer number, counted over all stages; the last for a later number."""
        ends = list(accumulate(self.chunk_sizes(layers)))
        return min(bisect_left(ends, layer), len(ends) - 1)

    def stage_of_layer(self, layers: Layers, layer: int) -> int:
        """Return the pipeline stage that holds the global layer number."""
        return self.chunk_of_layer(layers, layer) % self.pp

    @property
    def prediction_stage(self) -> int:
        """The stage whose last chunk has the layers of multi-token prediction, if the model has some."""
        chunks = stages_of(self.stages) if self.stages else []
        placed = [number % self.pp for number, chunk in enumerate(chunks) if PREDICTION in chunk]
        return placed[0] if placed and len(chunks) == self.pp * self.vpp else self.pp - 1

    def ends(self, wanted: int | None, pp: int, chunk: int) -> bool:
        """Return whether a chunk of stage `pp` is the last one of stage `wanted`; None: that of prediction layers."""
        return (pp, chunk) == (self.prediction_stage if wanted is None else wanted, self.vpp - 1)

    @property
    def cp_chunks(self) -> int:
        """The chunks of equal length that each segment is cut into, two for every context parallel rank; 1 without."""
        return 2 * self.cp if self.cp > 1 else 1

    @property
    def alignment(self) -> int:
        """The multiple, in tokens, that packed documents are padded to.

        lcm(2 * cp if cp > 1, cp * tp if sequence parallel): zigzag needs equal chunks, and the local length must split
        over the tp ranks (Megatron-Bridge ConfigContainer.validate).
        """
        sequence = self.cp * self.tp if self.sp and self.tp > 1 else 1
        return math.lcm(self.cp_chunks, sequence)


def _chunk_name(chunk: str) -> str:
    """A chunk as part of a cell's name, which is also a file name: its decoder layers, and `m` for prediction."""
    return f"{chunk.count(DECODER)}{'m' if PREDICTION in chunk else ''}"
