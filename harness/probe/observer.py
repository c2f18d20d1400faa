"""Observes the passes of a step from hooks on the model: positions, losses, gradients, layer outputs.

Whoever drives the schedule, the harness (passes.py) or upstream's own trainer (upstreams/node_wrappers.py), announces
the pass, each micro-batch and its loss here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import MAX_TOKEN_LOSSES, DocumentLoss, LegName, Phase, TokenLoss
from harness.core.run.tensor_records import ParameterSeen
from harness.features.experts.node_routers import RouterRecorder
from harness.features.optimizer.node_distributed import whole_gradients
from harness.features.vision.node_model import language_of
from harness.probe.hooks.fingerprints import gradient_fingerprint, part_fingerprints
from harness.probe.hooks.layers import LayerRecorder, PassState, PredictionRecorder, Recomputed, ScaleRecorder
from harness.probe.hooks.operations import record_operations
from harness.probe.model.gpt import shard_ranks, unwrap
from harness.probe.model.parts import routers_of
from harness.probe.truth import StepTruth
from harness.probe.weights import NamedParameter, named_parameters
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext


@dataclass(kw_only=True)
class Losses:
    """Losses of a leg in a pass, on the last stage, over this rank's tokens, in float64.

    `pending`: tensors not read from the device yet, since that synchronises with the GPU; see `Observer.read_losses`.
    """

    loss_sum: float = 0.0
    token_count: float = 0.0
    documents: dict[int, DocumentLoss] = field(default_factory=dict)
    tokens: list[TokenLoss] = field(default_factory=list)
    pending: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # losses, mask, owners
    counts: list[Tensor] = field(default_factory=list)  # per micro-batch: the number of tokens that its loss returned
    divided: list[Tensor] = field(default_factory=list)  # per micro-batch that returned none: the loss, divided already


@dataclass(kw_only=True)
class LegInPass:
    """A leg's micro-batches in the pass in progress. Canary legs without a backward share a pass."""

    leg: LegName
    truth: StepTruth
    step: int  # as in progress reports
    micro_batches: int
    losses: Losses = field(default_factory=Losses)


class Observer:
    """Owns the hooks on a rank's model chunks, and what they have recorded of the pass in progress."""

    def __init__(self, chunks: list[Any], context: RankContext, recorder: Recorder) -> None:
        self.chunks, self.context, self.recorder = chunks, context, recorder
        self.state = PassState()
        self.gathered: dict[Tensor, Tensor] = {}  # parameter -> its gathered gradient, if gradients are sharded
        plain = [language_of(unwrap(chunk)) for chunk in chunks]
        self.recomputed = Recomputed(plain, context, self.state)  # first: later hooks read the position that it sets
        self.layer_recorder = LayerRecorder(plain, context, self.state, recorder)
        self.scales = [ScaleRecorder(chunk, number, self.state) for number, chunk in enumerate(chunks)]
        if context.config.operations is None:
            record_parts(plain, context, self.state, recorder)
        else:  # hooks that compute would be among the operations
            record_operations(plain, context, self.state, recorder)

    def begin_pass(self, truth: StepTruth, leg: LegName, *, keep_tokens: bool, step: int | None = None) -> None:
        """Announce the next pass, of one leg. `step`: as in progress reports; that of the truth if omitted."""
        number = truth.step if step is None else step
        self.begin_legs([LegInPass(leg=leg, truth=truth, step=number, micro_batches=len(truth.plans))])
        self.keep_tokens = keep_tokens

    def begin_legs(self, legs: Sequence[LegInPass]) -> None:
        """Announce the next pass, whose micro-batches are those of `legs`, one leg after another."""
        self.legs, self.counts, self.keep_tokens = list(legs), [0] * len(self.chunks), False
        self.backward = True
        self.recomputed.begin()
        self._enter(self.legs[0])
        self.recorder.progress(self.state.leg, self.state.step, 0, "start")

    def fetching(self, chunk: int) -> int:
        """Announce that a chunk fetches its next micro-batch; return the micro-batch's number within its leg."""
        number = self.counts[chunk]
        self.counts[chunk] += 1
        # The schedule numbers micro-batches over the whole pass; a leg's truth starts at 0.
        leg, *later = self.legs
        while later and number >= leg.micro_batches:  # the last leg has all others, should upstream fetch too many
            number -= leg.micro_batches
            leg = later.pop(0)
        self._enter(leg)
        self.recorder.progress(self.state.leg, self.state.step, number, "fetch")
        return number

    def _enter(self, leg: LegInPass) -> None:
        """Make a leg of the pass the current one."""
        self.current, self.state.leg, self.state.step = leg, leg.leg, leg.step

    @property
    def losses(self) -> Losses:
        """Of the current leg."""
        return self.current.losses

    @property
    def truth(self) -> StepTruth:
        """Of the current leg."""
        return self.current.truth

    def entering(self, chunk: int, number: int) -> Tensor:
        """Announce the forward of a fetched micro-batch; return the owners of its slots, [rows, local slots, 2]."""
        at, cp, cp_rank = self.state, self.context.config.layout.cp, self.context.place.cp
        micro = self.truth.micro_batches[number]
        at.chunk, at.micro_batch = chunk, number
        at.owners = micro.local(micro.owners, cp, cp_rank)
        at.rows = micro.local(micro.row_numbers, cp, cp_rank)
        at.slots = micro.local(torch.arange(len(micro.owners)), cp, cp_rank)
        at.data_step = self.truth.step
        self.recorder.progress(at.leg, at.step, number, "forward")
        if at.first_step:  # later steps are timed; their records are written at the end of the step
            self.recorder.flush()
        return at.owners

    def on_loss(self, output: Tensor, mask: Tensor, owners: Tensor) -> None:
        """Keep the losses per token of a micro-batch, [rows, local slots], with their mask, until `read_losses`."""
        # Cloned: upstream may reuse the memory of its output, and `item()` here would make a GPU wait in the middle of
        # the pass.
        self.losses.pending.append((output.detach().float().clone(), mask.float().clone(), owners))
        at = self.state
        self.recorder.progress(at.leg, at.step, at.micro_batch, "backward")

    def on_returned(self, returned: Sequence[Any]) -> None:
        """Keep the number of tokens that a micro-batch's loss returns to the schedule, between loss and report.

        Where there is none, the loss itself: it is divided already.
        """
        kept = self.losses.counts if len(returned) == 3 else self.losses.divided
        kept.append(torch.as_tensor(returned[1 if len(returned) == 3 else 0]).detach().clone())

    def progress(self, phase: Phase) -> None:
        """Note a phase that follows the last micro-batch."""
        self.recorder.progress(self.state.leg, self.state.step, len(self.truth.plans), phase)

    def named_parameters(self) -> Iterator[NamedParameter]:
        """Return the parameters of all chunks of this rank that train."""
        return (named for named in self.all_parameters() if named.parameter.requires_grad)

    def all_parameters(self) -> Iterator[NamedParameter]:
        """Yield the parameters of all chunks of this rank, those that adapters freeze too."""
        ranks = shard_ranks(self.context)
        for chunk in self.chunks:
            yield from named_parameters(unwrap(chunk), **ranks)

    def gradient_of(self, named: NamedParameter) -> Tensor:
        """Return the reduced gradient of a parameter; gathered if the ranks of dp x cp hold shards of it."""
        whole = self.gathered.get(named.parameter)
        gradient: Tensor = named.parameter.main_grad if whole is None else whole  # type: ignore[attr-defined]
        return gradient

    def parameters_seen(self) -> list[ParameterSeen]:
        """Return the fingerprints of the current gradients."""
        return [self._parameter_seen(named) for named in self.named_parameters()]

    def _parameter_seen(self, named: NamedParameter) -> ParameterSeen:
        config, gradient = self.context.config, self.gradient_of(named)
        alone = config.layout.world_size == 1  # such as the control, with which others are compared shard by shard
        return ParameterSeen(
            name=named.name,
            sharded=named.shard.dim is not None,
            gradient=gradient_fingerprint(named, gradient, config.train.seed),
            parts=part_fingerprints(named, gradient, config.train.seed) if alone else [],
            shard=named.expert_shard,
        )

    def read_losses(self) -> Losses:
        """Read the losses of the last pass from the device, and gather its gradients if they are sharded.

        Returns those of the current leg, which is the only one of a pass with a backward.
        """
        self.gathered = whole_gradients(self.chunks) if self.backward else {}
        for leg_losses in (leg.losses for leg in self.legs):
            pending, leg_losses.pending = leg_losses.pending, []
            for losses, mask, owners in pending:
                # In the precision in which upstream sums, since this is what its own report is compared with; sums per
                # document are float64.
                leg_losses.loss_sum += float((losses * mask).sum())
                leg_losses.token_count += float(mask.sum().to(torch.int))  # as pretrain_gpt.loss_func
                if self.context.place.tp == 0:  # the other tp ranks have the same losses
                    self._record_losses(leg_losses, losses.cpu(), mask.cpu(), owners)
        return self.losses

    def _record_losses(self, leg_losses: Losses, losses: Tensor, mask: Tensor, owners: Tensor) -> None:
        if losses.shape != owners.shape[:-1]:
            return  # wrong shape; the metadata lane reports it
        documents, positions = owners.flatten(0, 1).unbind(1)
        losses, mask = losses.flatten().double(), mask.flatten().double()
        for document in set(documents.tolist()):
            if document == PAD:
                continue
            in_document = documents == document
            document_loss = leg_losses.documents.setdefault(document, DocumentLoss(loss_sum=0.0, tokens=0))
            document_loss.loss_sum += float((losses * mask)[in_document].sum())
            document_loss.tokens += int(mask[in_document].sum())
        # Enough tokens to show where a document goes wrong; all of them would be most of the record.
        if self.keep_tokens and len(leg_losses.tokens) < MAX_TOKEN_LOSSES:
            counted = ((mask > 0) & (documents != PAD)).nonzero().flatten().tolist()
            rows = zip(documents[counted].tolist(), positions[counted].tolist(), losses[counted].tolist())
            leg_losses.tokens += [TokenLoss(document=d, position=p, loss=value) for d, p, value in rows]


def record_parts(chunks: list[Any], context: RankContext, state: PassState, recorder: Recorder) -> None:
    """Install the hooks on `chunks`, the modules inside DDP, in order. Prediction layers are numbered last."""
    model = context.config.model
    if model.moe:
        routers = {n: router for chunk in chunks for n, router in routers_of(chunk, model.layers).items()}
        RouterRecorder(routers, context, state, recorder)
    if model.mtp and context.is_last(len(chunks) - 1):
        PredictionRecorder(chunks[-1], model.mtp.layers, state, recorder)
