"""What the ranks of a cell must record, from its configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from harness.core.cell.canary_legs import Leg
from harness.core.cell.layout import Coordinates
from harness.features.hybrid.pattern import ATTENTION, EXPERTS, MIXERS
from harness.judge.diagnosis.localise import layer_of
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.truth import attention_layers, layers_with

T = TypeVar("T")
BatchKey = tuple[int, int, int]  # step, chunk, micro-batch
LayerKey = tuple[int, int, int, int]  # step, chunk, micro-batch, layer

OF_EXPERT = re.compile(r"\.experts\.\d+\.")  # in the name of a weight


class Expected:
    """What ranks must record, from the configuration of one cell. `stage`: pipeline stage; layers count from 1."""

    def __init__(self, evidence: CellEvidence) -> None:
        self.evidence, self.config = evidence, evidence.cell.config
        self.layout, self.model = evidence.layout, evidence.cell.config.model
        self._made: dict[Hashable, Any] = {}

    def once(self, make: Callable[..., T], *key: Hashable) -> T:
        """Return what `make` returns for the key, made once: the ranks of a stage and replica share it.

        `functools.cache` of a method would refer to itself, and judging, which runs without the garbage collector,
        would keep the records of every cell.
        """
        cache_key = (make.__name__, *key)
        if cache_key not in self._made:
            self._made[cache_key] = make(*key)
        value: T = self._made[cache_key]
        return value

    @cached_property
    def has_first_step(self) -> bool:
        """Return whether this part of the cell trains step 0, of which routers and prediction layers are recorded."""
        return 0 in self.evidence.steps

    @cached_property
    def fingerprints(self) -> bool:
        """Return whether ranks record fingerprints: they are asked for, and a step is trained."""
        return self.config.fingerprints and bool(self.evidence.steps)

    def is_last(self, place: Coordinates) -> bool:
        """Return whether a rank is on the last stage."""
        return place.pp == self.layout.pp - 1

    def layers(self, stage: int) -> list[int]:
        """Return the decoder layers of a stage, without prediction layers, ascending."""
        chunks = range(self.layout.vpp)
        return sorted(layer for chunk in chunks for layer in self.layout.layers(self.model.spread, stage, chunk))

    def chunks_with_weights(self, stage: int) -> list[int]:
        """Return the chunks of a stage with weights: `stages` may leave chunks without a part of the model."""
        layout, mtp = self.layout, self.model.mtp is not None
        ends = {(0, 0), (layout.pp - 1, layout.vpp - 1)}
        ends |= {(layout.prediction_stage, layout.vpp - 1)} if mtp else set()
        layers = (layout.layers(self.model.spread, stage, chunk) for chunk in range(layout.vpp))
        return [chunk for chunk, held in enumerate(layers) if held or (stage, chunk) in ends]

    def has_norms(self, stage: int) -> bool:
        """Return whether a stage has norms; with prediction layers the final one is beside the last layer."""
        mtp, layout = self.model.mtp is not None, self.layout
        return bool(self.layers(stage)) or stage == (layout.prediction_stage if mtp else layout.pp - 1)

    def outputs(self, place: Coordinates) -> list[int]:
        """Return the layers with a fingerprint of the output, 0 for the embedding; of equal tp ranks, the first."""
        if not self.fingerprints or (place.tp and not self.layout.sp):
            return []
        return ([0] if place.pp == 0 else []) + self.layers(place.pp)

    def routed(self, stage: int) -> list[int]:
        """Return the layers with a router."""
        if self.model.moe is None:
            return []
        chunks = range(self.layout.vpp)
        return [layer for chunk in chunks for layer in layers_with(self.config, stage, chunk, EXPERTS)]

    def micro_batches(self, step: int, dp: int) -> range:
        """Return the numbers of a replica's micro-batches in a step."""
        return range(len(self.evidence.plan[step][dp]))

    def batch_keys(self, dp: int) -> frozenset[BatchKey]:
        """Return the micro-batches that are compared with the plan."""
        return frozenset(
            (step, chunk, number)
            for step in self.evidence.fetched_steps
            for chunk in range(self.layout.vpp)
            for number in self.micro_batches(step, dp)
        )

    def layer_keys(self, stage: int, dp: int) -> frozenset[LayerKey]:
        """Return the layers whose attention is recorded, of every micro-batch."""
        return frozenset(
            (step, chunk, number, layer)
            for step in self.evidence.steps
            for number in self.micro_batches(step, dp)
            for chunk in range(self.layout.vpp)
            for layer in attention_layers(self.config, stage, chunk)
        )

    def recomputed_keys(self, stage: int, dp: int) -> frozenset[LayerKey]:
        """Return the attention layers that backward recomputes."""
        if self.config.effective_recompute == "none":
            return frozenset()
        letters = ATTENTION if self.config.effective_recompute == "selective" else MIXERS
        first = self.config.args.recomputed_layers
        layers = [layers_with(self.config, stage, chunk, letters)[:first] for chunk in range(self.layout.vpp)]
        return frozenset(key for key in self.once(self.layer_keys, stage, dp) if key[3] in layers[key[1]])

    def leg_keys(self, leg: Leg, dp: int) -> frozenset[BatchKey]:
        """Return the micro-batches of a leg that does not run the model."""
        numbers = range(len(leg.micro_batches(self.config)[dp]))
        return frozenset((0, chunk, number) for chunk in range(self.layout.vpp) for number in numbers)

    @property
    def workloads(self) -> list[tuple[str, int]]:
        """Return (leg, step) in the order in which data paths that count their work build the iterators of chunk 0."""
        if not self.config.path.counts_work:
            return []
        fetched = [("metadata", 0)] if self.config.trained_by_harness else []
        return [*fetched, *(("training", step) for step in self.evidence.steps)]


def keys_problems(
    name: str, recorded_keys: Iterable[tuple[int, ...]], planned: Collection[tuple[int, ...]]
) -> Iterator[str]:
    """Yield a problem unless exactly the planned keys are there, once."""
    recorded = list(recorded_keys)
    if len(recorded) == len(planned) and {*recorded} == {*planned}:
        return
    for what, keys in (("missing", {*planned} - {*recorded}), ("not planned", {*recorded} - {*planned})):
        if keys:
            yield f"{name}: {len(keys)} {what}, such as {min(keys)}; {len(planned)} are planned"
            return
    yield f"{name}: {len(recorded)} recorded, {len(planned)} are planned"


def stage_problems(expected: Expected, at: Coordinates, names: Sequence[str]) -> Iterator[str]:
    """Yield what a stage lacks, or has beyond its layers."""
    held_layers = {layer for name in names if (layer := layer_of(name))}
    stage_layers = {*expected.layers(at.pp)}
    if held_layers != stage_layers:
        yield f"recorded for layers {sorted(held_layers)}, stage {at.pp} has {sorted(stage_layers)}"
    if at.pp == 0 and not any(name.startswith("embedding.") for name in names):
        yield "the first stage has no embedding"
    if expected.is_last(at) and not any(name.startswith(("output_layer.", "embedding.")) for name in names):
        yield "the last stage has no output layer"
