"""Parallel layout of a cell: sizes, and the coordinates of ranks.

Rank order is Megatron's default `tp-cp-ep-dp-pp`
(megatron.core.parallel_state.initialize_model_parallel): tp varies fastest, pp slowest.
Layers are numbered from 1 over the whole model, as Megatron's `layer_number` does.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from harness.core.setting import labels, setting

# The number of layers, split evenly over model chunks; or the number in each chunk.
Layers = int | tuple[int, ...]


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
    sp: bool = setting(
        False, doc="Sequence parallel; auto: on exactly when tp > 1.", upstream="sequence_parallel", auto=True
    )

    def name_parts(self) -> list[str]:
        """Return parts of a cell's name: sizes, and `nosp` where sequence parallel could be on but is off."""
        sizes = labels(replace(self, sp=False))
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
        pp, dp = divmod(rank, self.dp)
        return Coordinates(tp=tp, cp=cp, dp=dp, pp=pp)

    def rank(self, place: Coordinates) -> int:
        """Return the global rank at the coordinates; the inverse of `coordinates`."""
        return ((place.pp * self.dp + place.dp) * self.cp + place.cp) * self.tp + place.tp

    def chunk_sizes(self, layers: Layers) -> tuple[int, ...]:
        """Layers of each model chunk, in the order in which a token passes them."""
        count = self.pp * self.vpp
        if isinstance(layers, int):
            return (layers // count,) * count
        return layers if count > 1 else (sum(layers),)

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

    def ends(self, wanted: int | None, pp: int, chunk: int) -> bool:
        """Return whether a chunk of stage `pp` is the last one of the `wanted` stage; None: the last stage."""
        return (pp, chunk) == (self.pp - 1 if wanted is None else wanted, self.vpp - 1)

    @property
    def alignment(self) -> int:
        """The multiple, in tokens, that packed documents are padded to.

        lcm(2 * cp if cp > 1, cp * tp if sequence parallel): zigzag needs 2 * cp equal chunks, and the
        local length must split over the tp ranks (Megatron-Bridge ConfigContainer.validate).
        """
        zigzag = 2 * self.cp if self.cp > 1 else 1
        sequence = self.cp * self.tp if self.sp and self.tp > 1 else 1
        return math.lcm(zigzag, sequence)
