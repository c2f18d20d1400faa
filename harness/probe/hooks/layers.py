"""Records what layers receive and return, by wrapping their forward: the packed params of each attention layer, a
fingerprint of each layer's output, the same of what backward recomputes, prediction heads, the scale of gradients.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.core.run.records import DocumentLoss, GradientScale, LayerSeen, LegName, MtpSeen
from harness.core.run.tensor_records import ActivationSeen
from harness.features.attention.node_reference import CoreAttention
from harness.features.hybrid.node_model import numbered_layers
from harness.features.recompute.node_recompute import recomputed_module, recomputing
from harness.probe.hooks.fingerprints import document_fingerprints, merge
from harness.probe.model.parts import mtp_layers
from harness.probe.weights import is_expert
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext

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
    """Return the owners of the hidden states between layers: [s, b, 2], with s as in LayerRecorder._record."""
    assert state.owners is not None
    owners, layout = state.owners.transpose(0, 1), context.config.layout
    # Sequence parallelism gives each tp rank a contiguous part of the slots, after context parallelism has taken its
    # share.
    return owners.chunk(layout.tp, 0)[context.place.tp] if layout.sp else owners


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a module's first input: releases differ in what they pass by keyword."""
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
        """Record the embedding.

        With vision it is that of the whole row without images, and layers get what becomes of it.
        """
        record = self._output_hook(0)
        if self.context.config.model.vision is None:
            chunk.embedding.register_forward_hook(record)
        else:
            chunk.decoder.register_forward_pre_hook(
                lambda module, args, kwargs: record(module, args, first_input(args, kwargs)), with_kwargs=True
            )

    def drain(self) -> list[ActivationSeen]:
        """Return the fingerprints recorded since the last call, ordered by layer."""
        drained = [self.activations[layer] for layer in sorted(self.activations)]
        self.activations = {}
        return drained

    def _params_hook(self, layer: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            at = self.state
            # Canary legs run the same modules with other documents, and nothing compares their params.
            if at.leg != "training":
                return
            arguments = dict(zip(_OF_ATTENTION, args)) | kwargs
            # Core attention prefers the argument over its own attribute; the record must name the one that takes
            # effect.
            mask = arguments.get("attn_mask_type") or getattr(module, "attn_mask_type", None)
            layer_seen = LayerSeen(
                step=at.step,
                chunk=at.chunk,
                micro_batch=at.micro_batch,
                layer=layer,
                params=None,
                mask=getattr(mask, "name", None),
                biased=arguments.get("attention_bias") is not None,
            )
            self.recorder.layer(layer_seen, kwargs.get("packed_seq_params"), recomputed=recomputing())

        return hook

    def _output_hook(self, layer: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            # A recomputed output would be added to that of the first forward, since fingerprints of a layer are summed.
            if self.state.fingerprints and not recomputing() and not (layer == 0 and self._embedded_before()):
                self._record(layer, output[0] if isinstance(output, tuple) else output)

        return hook

    def _embedded_before(self) -> bool:
        """Return whether this micro-batch was embedded already: prediction layers embed rolled tokens after the
        model.
        """
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
        activation = self.activations.setdefault(layer, ActivationSeen(layer=layer, documents={}))
        merge(
            activation.documents,
            document_fingerprints(
                hidden.flatten(0, 1),
                owners.flatten(0, 1),
                length=config.train.seq_length,
                seed=config.train.seed,
            ),
        )


# Restores the probe's position while backward recomputes a layer.
#
# With pipeline parallelism, forwards of later micro-batches have already run by then. Schedules run the backwards of a
# model chunk in the order of its forwards, so a module's n-th recomputation belongs to its n-th forward in the pass.
class Recomputed:
    """Hooks around recomputed modules; construct it before registering hooks that read the state."""

    def __init__(self, chunks: list[Any], context: RankContext, state: PassState) -> None:
        self.state = state
        self.waiting: list[deque[dict[str, Any]]] = []  # per module: positions of its forwards, until their backward
        for chunk in chunks:
            for layer in (*chunk.decoder.layers, *mtp_layers(chunk)):
                module = recomputed_module(context.config.effective_recompute, layer)
                if module is not None:
                    self._watch(module)

    def begin(self) -> None:
        """Start a pass: drop the positions of a previous pass without backward."""
        for positions in self.waiting:
            positions.clear()

    def _watch(self, module: Any) -> None:
        positions: deque[dict[str, Any]] = deque()
        interrupted: list[dict[str, Any]] = []  # positions to return to
        self.waiting.append(positions)

        def enter(*_: Any) -> None:
            now = dict(vars(self.state))
            if recomputing():
                interrupted.append(now)
                # The oldest position, not the newest: backwards run in the order of forwards (see above), even where
                # 1F1B has more forwards in flight.
                vars(self.state).update(positions.popleft())
            else:
                positions.append(now)

        def leave(*_: Any) -> None:
            if recomputing():
                vars(self.state).update(interrupted.pop())

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


# Records multi-token prediction at step 0: its loss per document, over the tokens that upstream counts.
#
# The losses are what upstream's compute_language_model_loss returns for the labels that upstream rolled. Which tokens
# count is read from what upstream saves for backward (MTPLossAutoScaler; megatron-core 0.14 to 0.19).
class PredictionRecorder:
    """Wraps the loss and hooks the output layer of the last stage's chunk; changes no values."""

    def __init__(self, chunk: Any, depths: int, state: PassState, recorder: Recorder) -> None:
        self.depths, self.state, self.recorder = depths, state, recorder
        self.losses: list[Tensor] = []  # per depth, [rows, local slots] each
        self.main_next = False  # whether the next loss is the main head's
        self.upstream = chunk.compute_language_model_loss
        chunk.compute_language_model_loss = self._loss
        chunk.output_layer.register_forward_pre_hook(self._before_output, with_kwargs=True)

    def _loss(self, labels: Tensor, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = self.upstream(labels, logits, *args, **kwargs)
        if not self.main_next:
            self.losses.append(loss.detach())
        self.main_next = False
        return loss

    def _before_output(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record all depths before the main head, whose input's autograd graph holds their losses, last depth first."""
        # The prediction heads use the same output layer; only the call after all of them is the main head's.
        if len(self.losses) < self.depths:
            return
        losses, self.losses, self.main_next = self.losses, [], True
        if not self.state.first_step:
            return
        # MTPLossAutoScaler.apply chains one node per depth onto the hidden states and saves the masked loss for
        # backward; there is no public API for it.
        node = first_input(args, kwargs).grad_fn
        for depth in range(self.depths, 0, -1):
            (weighted,) = node.saved_tensors
            self.recorder.record.mtp.append(self._seen(depth, losses[depth - 1], weighted))
            node = node.next_functions[0][0]

    def _seen(self, depth: int, losses: Tensor, weighted: Tensor) -> MtpSeen:
        assert self.state.owners is not None
        documents = self.state.owners[..., 0].flatten()
        # A token counts if its masked loss is not 0: upstream multiplies by the rolled mask, and no cross-entropy of a
        # random model is exactly 0.
        counted = weighted.detach().cpu().flatten() != 0  # owners are on the CPU
        values = losses.cpu().flatten().double()
        losses_by_document = {}
        for document in torch.unique(documents[counted]).tolist():
            in_document = counted & (documents == document)
            losses_by_document[int(document)] = DocumentLoss(
                loss_sum=float(values[in_document].sum()), tokens=int(in_document.sum())
            )
        return MtpSeen(depth=depth, micro_batch=self.state.micro_batch, documents=losses_by_document)


# Measures at step 0 what Megatron multiplies reduced gradients by, separately for experts, which DDP holds apart.
#
# DDP scales before it reduces, and finalize_model_grads scales afterwards with `scale_gradients` of each model chunk
# (DistributedDataParallel, megatron-core 0.12 to 0.19), as the last thing that it does to gradients. The second factor
# is measured on the gradients that the optimizer gets, not taken from the argument.
class ScaleRecorder:
    """Wraps `scale_gradients` of a model chunk; changes no values."""

    def __init__(self, chunk: Any, number: int, state: PassState) -> None:
        """`chunk`: a DDP module."""
        self.chunk, self.number, self.state = chunk, number, state
        named = [(name, parameter) for name, parameter in chunk.named_parameters() if parameter.requires_grad]
        self.groups = {
            "dense": [parameter for name, parameter in named if not is_expert(name)],
            "experts": [parameter for name, parameter in named if is_expert(name)],
        }
        self.before: dict[str, float] = {}  # norms of gradients that upstream has not scaled yet
        self.given = 1.0
        self.upstream: Callable[[Any], None] = chunk.scale_gradients
        chunk.scale_gradients = self._scale

    def _scale(self, factor: Any) -> None:
        if self.state.first_step:
            # Upstream may scale more than once in a pass: the norm must be that before the first time.
            self.before = self.before or {name: _norm(group) for name, group in self.groups.items()}
            self.given *= float(factor)
        self.upstream(factor)

    def seen(self) -> GradientScale:
        """Return both factors together, as the gradients are now."""
        # One parameter stands for its group: DDP sets the factor per buffer, and a buffer holds only dense weights or
        # only experts.
        factors = {name: self._reduced(group[0]) * self._scaled(name) for name, group in self.groups.items() if group}
        return GradientScale(chunk=self.number, dense=factors.get("dense"), experts=factors.get("experts"))

    def _scaled(self, name: str) -> float:
        """Return the factor of a group since its reduction.

        That which upstream was given if its gradients are all 0.
        """
        norm = self.before.get(name)
        return _norm(self.groups[name]) / norm if norm else self.given

    def _reduced(self, parameter: Tensor) -> float:
        """Return the factor of DDP's reduction: before it, and within it if the collective averages."""
        buffers = (*self.chunk.buffers, *self.chunk.expert_parallel_buffers)
        buffer = next(candidate for candidate in buffers if any(member is parameter for member in candidate.params))
        averages = self.chunk.ddp_config.average_in_collective
        return float(buffer.gradient_scaling_factor) / (buffer.data_parallel_group.size() if averages else 1)


def _norm(parameters: Iterable[Tensor]) -> float:
    squares = [parameter.main_grad.double().square().sum() for parameter in parameters]  # type: ignore[attr-defined]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
