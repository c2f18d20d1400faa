"""Records required of each rank of a completed cell. Sets are built once per stage and replica, not per rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from harness.core.cell.canary_legs import Leg
from harness.core.cell.layout import Coordinates
from harness.core.layer_pattern import ATTENTION, EXPERTS, MIXERS
from harness.core.packing.arithmetic import MicroBatch
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.chunks import attention_layers, layers_with

T = TypeVar("T")
BatchKey = tuple[int, int, int]  # step, chunk, micro-batch
Shapes = dict[tuple[int, int], list[int]]  # step, micro-batch -> [rows, slots per cp rank]
LayerKey = tuple[int, int, int, int]  # step, chunk, micro-batch, layer


class Expected:
    """What ranks must record, from the configuration of one cell. `stage`: pipeline stage; layers count from 1."""

    def __init__(self, evidence: CellEvidence) -> None:
        self.evidence, self.config = evidence, evidence.cell.config
        self.layout, self.model = evidence.layout, evidence.cell.config.model
        self._made: dict[tuple[Any, ...], Any] = {}

    def batch_keys(self, dp: int) -> list[BatchKey]:
        """Micro-batches that are compared with the plan."""
        return self._once(self._batch_keys, dp)

    def layer_keys(self, stage: int, dp: int) -> frozenset[LayerKey]:
        """Layers whose attention is recorded, of every micro-batch."""
        return self._once(self._layer_keys, stage, dp)

    def shapes(self, dp: int) -> Shapes:
        """Shapes of the micro-batches that are compared with the plan."""
        return self._once(self._shapes, dp)

    def leg_batches(self, name: str, dp: int) -> tuple[list[BatchKey], Shapes]:
        """Micro-batches, and their shapes, of a leg that does not run the model."""
        return self._once(self._leg_batches, name, dp)

    def _once(self, make: Callable[..., T], *key: Any) -> T:
        """What `make` returns for the key, made once. `functools.cache` of a method would refer to itself, and judging,
        which runs without the garbage collector, would keep the records of every cell.
        """
        place = (make.__name__, *key)
        if place not in self._made:
            self._made[place] = make(*key)
        found: T = self._made[place]
        return found

    @property
    def ranks_per_node(self) -> int:
        return max(self.layout.world_size // self.evidence.nodes, 1)

    @cached_property
    def legs(self) -> list[Leg]:
        return self.evidence.legs_planned

    @property
    def has_first_step(self) -> bool:
        """Whether this part of the cell trains step 0, of which routers and prediction layers are recorded."""
        return 0 in self.evidence.steps

    def is_last(self, place: Coordinates) -> bool:
        return place.pp == self.layout.pp - 1

    def records_outputs(self, place: Coordinates) -> bool:
        """Whether the rank records layer outputs: without sequence parallel all tp ranks hold the same tokens."""
        return place.tp == 0 or self.layout.sp

    def layers(self, stage: int) -> list[int]:
        """Decoder layers of a stage, without prediction layers, ascending."""
        return self._once(self._layers, stage)

    def _layers(self, stage: int) -> list[int]:
        chunks = range(self.layout.vpp)
        return sorted(layer for chunk in chunks for layer in self.layout.layers(self.model.spread, stage, chunk))

    def outputs(self, stage: int) -> list[int]:
        """Layers with a fingerprint of the output; 0 is the embedding."""
        return ([0] if stage == 0 else []) + self.layers(stage)

    def routed(self, stage: int) -> list[int]:
        """Layers with a router."""
        if self.model.moe is None:
            return []
        chunks = range(self.layout.vpp)
        return [layer for chunk in chunks for layer in layers_with(self.config, stage, chunk, EXPERTS)]

    def _batch_keys(self, dp: int) -> list[BatchKey]:
        steps = self.evidence.fetched_steps
        return [key for step in steps for key in self._keys(step, len(self.evidence.plan[step][dp]))]

    def _keys(self, step: int, count: int) -> list[BatchKey]:
        return [(step, chunk, number) for chunk in range(self.layout.vpp) for number in range(count)]

    def _layer_keys(self, stage: int, dp: int) -> frozenset[LayerKey]:
        return frozenset(
            (step, chunk, number, layer)
            for step in self.evidence.steps
            for number in range(len(self.evidence.plan[step][dp]))
            for chunk in range(self.layout.vpp)
            for layer in attention_layers(self.config, stage, chunk)
        )

    def recomputed_keys(self, stage: int, dp: int) -> frozenset[LayerKey]:
        """Attention layers that backward recomputes."""
        if self.config.recomputes == "none":
            return frozenset()
        first, letters = self.config.args.recomputed_layers, MIXERS
        if self.config.recomputes == "selective":
            letters = ATTENTION  # the rest of a layer, and recurrent ones, are not
        layers = [layers_with(self.config, stage, chunk, letters)[:first] for chunk in range(self.layout.vpp)]
        return frozenset(key for key in self.layer_keys(stage, dp) if key[3] in layers[key[1]])

    def _shapes(self, dp: int) -> Shapes:
        return {
            (step, number): self._shape(truth.batch)
            for step in self.evidence.fetched_steps
            for number, truth in enumerate(self.evidence.plan[step][dp])
        }

    def _shape(self, batch: MicroBatch) -> list[int]:
        rows = 1 if batch.style.packed else len(batch.rows)
        return [rows, batch.slots // rows // self.layout.cp]

    def _leg_batches(self, name: str, dp: int) -> tuple[list[BatchKey], Shapes]:
        leg = next(item for item in self.legs if item.name == name)
        batches = leg.micro_batches(self.config)[dp]
        shapes = {(0, number): self._shape(batch) for number, batch in enumerate(batches)}
        return self._keys(0, len(batches)), shapes

    @property
    def workloads(self) -> list[tuple[str, int]]:
        """(leg, step) in the order in which data paths that count their work build the iterators of chunk 0."""
        if not self.config.path.counts_work:
            return []
        fetched = [("metadata", 0)] if self.config.own_trainer else []
        return [*fetched, *(("training", step) for step in self.evidence.steps)]
