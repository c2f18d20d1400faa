"""Records the packed params that each attention layer receives, and a fingerprint of each layer's output."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harness.core.run.records import LayerSeen, LegName
from harness.core.run.tensor_records import ActivationSeen
from harness.node.data_paths.base import RankContext
from harness.node.probe.hooks.fingerprints import document_fingerprints, merge
from harness.node.probe.model.core_attention import CoreAttention
from harness.node.probe.model.hybrid import numbered_layers
from harness.node.probe.model.parts import mtp_layers
from harness.node.probe.model.recompute import recomputing
from harness.node.recording.recorder import Recorder

# Arguments of core attention in order, which upstream's modules and the probe's share.
_OF_ATTENTION = tuple(inspect.signature(CoreAttention.forward).parameters)[1:]


@dataclass
class PassState:
    """The leg and micro-batch that a model chunk is processing: set by the forward step, read by the hooks."""

    leg: LegName = "training"
    fingerprints: bool = False  # whether to fingerprint layer outputs
    step: int = 0
    data_step: int = 0  # whose documents the pass has: evaluations come after all steps
    chunk: int = 0
    micro_batch: int = 0
    owners: Tensor | None = None  # [rows, local slots, 2] on this context-parallel rank
    rows: Tensor | None = None  # [rows, local slots]: each slot's row, before rows are merged
    slots: Tensor | None = None  # [rows, local slots]: its number in the micro-batch

    @property
    def first_step(self) -> bool:
        """Whether this is step 0 of the training leg."""
        return self.leg == "training" and self.step == 0


def local_owners(state: PassState, context: RankContext) -> Tensor:
    """Owners of the hidden states between layers: [s, b, 2], with s as in LayerRecorder._record."""
    assert state.owners is not None
    owners, layout = state.owners.transpose(0, 1), context.config.layout
    return owners.chunk(layout.tp, 0)[context.place.tp] if layout.sp else owners


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A module's first input: releases differ in what they pass by keyword."""
    return [*args, *kwargs.values()][0]


class LayerRecorder:
    """Registers its hooks when constructed. Params are recorded only in the training leg."""

    def __init__(self, chunks: list[Any], context: RankContext, state: PassState, recorder: Recorder) -> None:
        self.context = context
        self.state = state
        self.recorder = recorder
        self.activations: dict[int, ActivationSeen] = {}
        self.embedded: tuple[str, int, int] | None = None  # the last embedded (leg, step, micro-batch)
        for chunk in chunks:
            if context.is_first(chunks.index(chunk)):
                self._embedding_hook(chunk)
            for layer in numbered_layers(chunk):
                if layer.mixer is not None:
                    layer.mixer.register_forward_pre_hook(self._params_hook(layer.number), with_kwargs=True)
                layer.whole.register_forward_hook(self._output_hook(layer.number))
            for number, layer in enumerate(mtp_layers(chunk), context.config.model.layers + 1):
                attention = layer.self_attention.core_attention
                attention.register_forward_pre_hook(self._params_hook(number), with_kwargs=True)

    def _embedding_hook(self, chunk: Any) -> None:
        """With vision the embedding is that of the whole row without images; layers get what becomes of it."""
        record = self._output_hook(0)
        if self.context.config.model.vision is None:
            chunk.embedding.register_forward_hook(record)
        else:
            chunk.decoder.register_forward_pre_hook(
                lambda module, args, kwargs: record(module, args, first_input(args, kwargs)), with_kwargs=True
            )

    def drain(self) -> list[ActivationSeen]:
        """The fingerprints recorded since the last call, ordered by layer."""
        seen = [self.activations[layer] for layer in sorted(self.activations)]
        self.activations = {}
        return seen

    def _params_hook(self, layer: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            at = self.state
            if at.leg != "training":
                return
            given = dict(zip(_OF_ATTENTION, args)) | kwargs
            mask = given.get("attn_mask_type") or getattr(module, "attn_mask_type", None)
            seen = LayerSeen(
                step=at.step,
                chunk=at.chunk,
                micro_batch=at.micro_batch,
                layer=layer,
                params=None,
                mask=getattr(mask, "name", None),
                biased=given.get("attention_bias") is not None,
            )
            self.recorder.layer(seen, kwargs.get("packed_seq_params"), recomputed=recomputing())

        return hook

    def _output_hook(self, layer: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            if self.state.fingerprints and not recomputing() and not (layer == 0 and self._embedded_before()):
                self._record(layer, output[0] if isinstance(output, tuple) else output)

        return hook

    def _embedded_before(self) -> bool:
        """Whether this micro-batch was embedded already: prediction layers embed rolled tokens after the model."""
        at = self.state
        before, self.embedded = self.embedded, (at.leg, at.data_step, at.micro_batch)
        return before == self.embedded

    def _record(self, layer: int, hidden: Tensor) -> None:
        """Record the fingerprint of hidden [s, b, h]; with sequence parallelism s is this tp rank's contiguous part."""
        config, place = self.context.config, self.context.place
        if place.tp > 0 and not config.layout.sp:
            return  # all tp ranks have the same tokens; tp rank 0 records them
        owners = local_owners(self.state, self.context)
        if owners.shape[:2] != hidden.shape[:2]:
            return  # wrong shape; the metadata lane reports it
        seen = self.activations.setdefault(layer, ActivationSeen(layer=layer, documents={}))
        merge(
            seen.documents,
            document_fingerprints(
                hidden.flatten(0, 1),
                owners.flatten(0, 1),
                length=config.train.seq_length,
                seed=config.train.seed,
            ),
        )
