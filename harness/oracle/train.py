"""Trains a cell, and keeps what its ranks record: the entry of the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.schedule import Schedule
from harness.core.packing.arithmetic import PAD, MicroBatch
from harness.core.run.records import MAX_TOKEN_LOSSES, BuiltSeen, DocumentLoss, TokenLoss
from harness.features.adapters.config import is_adapter
from harness.oracle.choices import NO_CHOICES, Choices, Place, Ranked
from harness.oracle.experts import moved_bias, preferences
from harness.oracle.fields import Model, Optimizer
from harness.oracle.loss import Divisors, MicroLoss, micro_loss, share_of_step, taken_by_experts
from harness.oracle.model import Forward, forward
from harness.oracle.optimizer import Adam, clip_coefficient, gradient_norm
from harness.oracle.rows import Stream, stream_of
from harness.oracle.weights import initial_weights


@dataclass(kw_only=True)
class Parameter:
    """A weight in step 0, and its change by all steps; tensors of its full shape."""

    gradient: Tensor  # before clipping
    first_moment: Tensor
    second_moment: Tensor
    change: Tensor
    trained: Tensor


@dataclass(kw_only=True)
class RouterLosses:
    """A router of a micro-batch of step 0."""

    layer: int  # from 1; prediction layers come after the others
    replica: int
    micro_batch: int
    balance: float  # with its weight
    z: float
    taken: list[int]  # slots that each expert takes
    chosen: Tensor  # [t, e] bool
    logits: Tensor  # [t, e]
    real: Tensor  # [t] bool: slots of documents


@dataclass(kw_only=True)
class Prediction:
    """A prediction layer in a micro-batch of step 0: losses of the tokens that count, PAD for those of no document."""

    depth: int  # from 1
    replica: int
    micro_batch: int
    documents: dict[int, DocumentLoss]


Outputs = dict[int, dict[int, Tensor]]  # layer (0: embedding) -> document -> [t, h]


@dataclass(kw_only=True)
class Step:
    """A step of training, or an evaluation."""

    documents: dict[int, DocumentLoss]
    tokens: int  # labels that count
    micro_batches: int = 0  # of all replicas
    gradient_norm: float = 0.0  # before clipping
    clip: float = 1.0
    learning_rate: float = 0.0
    weight_decay: float = 0.0
    biases: dict[int, list[float]] = field(default_factory=dict)  # by layer: of experts, after the step
    outputs: Outputs = field(default_factory=dict)  # of step 0 and of evaluations

    @property
    def loss_sum(self) -> float:
        return sum(seen.loss_sum for seen in self.documents.values())


@dataclass(kw_only=True)
class Trained:
    """All that the oracle computes of a cell."""

    model: Model
    steps: list[Step] = field(default_factory=list)
    evaluations: dict[int, Step] = field(default_factory=dict)  # by number
    parameters: dict[str, Parameter] = field(default_factory=dict)
    routers: list[RouterLosses] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    tokens: list[TokenLoss] = field(default_factory=list)  # of step 0
    ranked: dict[Place, Ranked] = field(default_factory=dict)  # where a choice was followed


class Oracle:
    """Model, weights and optimizer of a cell.

    It trains the model that upstream built, from the cell's initial weights, on the rows of its packing plan.
    """

    def __init__(
        self,
        config: CellConfig,
        model: Model,
        settings: Optimizer,
        dtype: torch.dtype,
        choices: Choices = NO_CHOICES,
    ) -> None:
        self.config, self.model, self.choices, self.dtype = config, model, choices, dtype
        # Optimizers keep float32 weights of a bf16 model; in float64 there is nothing to widen.
        wide = torch.promote_types(dtype, torch.float32)
        drawn = initial_weights(model, config.train.seed, wide)
        self.weights = {name: self._stored(weight.detach(), dtype) for name, weight in drawn.items()}
        self.trained = {  # by the optimizer, its own copy
            name: weight.detach() for name, weight in drawn.items() if model.adapters is None or is_adapter(name)
        }
        self.adam, self.schedule = Adam.of(settings, self.trained), Schedule.of(config)
        layers = range(1, model.layers + model.predictions + 1)
        count = model.experts.count if model.experts else 0
        self.biases = {number: torch.zeros(count) for number in layers if model.has_experts(number)}
        self.seen = Trained(model=model)

    @classmethod
    def of(
        cls,
        config: CellConfig,
        built: Sequence[BuiltSeen],
        dtype: torch.dtype = torch.float64,
        choices: Choices = NO_CHOICES,
    ) -> Oracle:
        """`built`: of the rank's record; what `fields.uncovered` names in it is not computed as upstream does.

        `dtype`: of the model; the optimizer and sums of gradients are in float32 at least. `choices`: to follow.
        """
        model = Model.read(built, config.model.peft, config.model.pattern)
        return cls(config, model, Optimizer.read(built), dtype, choices)

    def _stored(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what the model computes with: a copy of the optimizer's weight, rounded if ranks store it in bf16.

        Megatron-LM core_v0.19.0, Float16OptimizerWithFloat16Params.
        """
        rounded = weight.to(self.model.stored) if self.model.stored == torch.bfloat16 else weight
        return rounded.to(dtype, copy=True).requires_grad_()

    def run(self) -> Trained:
        for _ in self.updates():
            pass
        return self.seen

    def updates(self) -> Iterator[dict[str, Tensor]]:
        """Train; yields the clipped gradients of every step, once it has changed the weights."""
        before = {name: weight.clone() for name, weight in self.trained.items()}
        for step in range(self.config.train.steps):
            gradients = self._step(step)
            for number, after in enumerate(self.config.evaluated):
                if after == step + 1:
                    self.seen.evaluations[number] = self._evaluation(self.config.train.steps + number)
            yield gradients
        for name, weight in self.trained.items():
            self.seen.parameters[name].trained = weight - before[name]

    def _step(self, step: int) -> dict[str, Tensor]:
        # Summed apart from the model's own `.grad`, which would round each addition to bf16: Megatron adds into float32
        # buffers.
        gradients = {name: torch.zeros_like(weight) for name, weight in self.trained.items()}
        seen, taken = self._backward(step, gradients)
        seen.gradient_norm = gradient_norm(gradients)
        seen.clip = clip_coefficient(seen.gradient_norm, self.adam.settings.clip)
        seen.learning_rate, seen.weight_decay = self.schedule.rate(step), self.schedule.weight_decay(step)
        clipped = {name: gradient * seen.clip for name, gradient in gradients.items()}
        changes = self.adam.update(self.trained, clipped, seen.learning_rate, seen.weight_decay)
        for name, weight in self.trained.items():
            self.weights[name] = self._stored(weight, self.weights[name].dtype)
        if step == 0:
            self.seen.parameters = {
                name: Parameter(
                    gradient=gradients[name],
                    first_moment=self.adam.first[name].clone(),
                    second_moment=self.adam.second[name].clone(),
                    change=changes[name],
                    trained=changes[name],
                )
                for name in gradients
            }
        if self.model.experts and self.model.experts.biased:
            for number, bias in self.biases.items():
                counts = taken[number].to(self.dtype)  # as upstream's Float16Module does
                self.biases[number] = moved_bias(bias, counts, self.model.experts.bias_rate)
            seen.biases = {number: bias.tolist() for number, bias in self.biases.items()}
        self.seen.steps.append(seen)
        return clipped

    def _backward(self, step: int, gradients: Mapping[str, Tensor]) -> tuple[Step, dict[int, Tensor]]:
        """Add to the gradients those of a step; returns its losses, and by layer how many slots each expert took.

        The micro-batches of all replicas with the same number run together, since a loss of routers may be over them.
        """
        replicas = self.config.micro_batches(step)
        divisors = self._divisors(replicas)
        seen = Step(documents={}, tokens=divisors[0].labels, micro_batches=sum(map(len, replicas)))
        taken: dict[int, Tensor] = {}
        before: list[list[Tensor]] = []  # by router: preferences of earlier micro-batches over all replicas
        # Replicas may have different numbers of micro-batches; `zip` would drop the last ones.
        for number, turn in enumerate(zip_longest(*replicas)):
            streams = {replica: stream_of(self.config, step, plan) for replica, plan in enumerate(turn) if plan}
            passes = {replica: self.forward(stream, step, replica, number) for replica, stream in streams.items()}
            together = [(streams[replica], passes[replica]) for replica in streams]
            before = before or [[] for _ in together[0][1].routed]
            total = torch.zeros(())
            for replica, stream in streams.items():
                part = micro_loss(passes[replica], stream, self.model, self._smoothing, together, before)
                total = total + share_of_step(part, stream, self.model, divisors[replica])
                seen.documents |= _by_document(part.losses, stream.mask, stream, padding=False)
                if step == 0:
                    _add_outputs(seen.outputs, passes[replica], stream)
                    self._keep(passes[replica], part, stream, replica, number)
            total.backward()  # type: ignore[no-untyped-call]
            self._add_gradients(gradients)
            for router, earlier in enumerate(before):
                peers = [passed.routed[router] for passed in passes.values()]
                earlier.append(torch.stack([preferences(peer).sum(0) for peer in peers]).sum(0).detach())
                took = taken_by_experts(peers)
                taken[peers[0].layer] = taken.get(peers[0].layer, torch.zeros_like(took)) + took
        return seen, taken

    def _divisors(self, replicas: Sequence[Sequence[MicroBatch]]) -> list[Divisors]:
        """Return by what the losses of each replica are divided."""
        plans = [plan for replica in replicas for plan in replica]
        labels = sum(plan.loss_tokens for plan in plans)
        # One more than the labels: a document's last token counts although nothing follows it.
        every = sum(item.document.length + 1 for plan in plans for item in plan.placed)
        counted = every if self.config.path.counted == "tokens" else labels
        return [
            Divisors(
                labels=labels,
                counted=counted,
                micro_batches=len(replica) * len(replicas),
                step_mean=self.config.step_mean,
            )
            for replica in replicas
        ]

    def _add_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients of the last backward, and clear them."""
        for name, weight in self.weights.items():
            if weight.grad is not None and name in gradients:  # else it is frozen, or an expert without tokens
                gradients[name] += weight.grad
            weight.grad = None

    @property
    def _smoothing(self) -> float:
        return self.config.train.label_smoothing

    def forward(self, stream: Stream, step: int, replica: int, number: int) -> Forward:
        """Of micro-batch `number` of a replica."""
        places = {layer: (step, replica, number, layer) for layer in self.biases}
        choices = {layer: self.choices[place] for layer, place in places.items() if place in self.choices}
        seen = forward(self.weights, self.model, stream, self.biases, choices)
        for routed in seen.routed:
            if choice := choices.get(routed.layer):
                self.seen.ranked[places[routed.layer]] = Ranked(
                    routed.ranked, choice, stream.documents, stream.positions, routed.order, stream.shares
                )
        return seen

    def _evaluation(self, step: int) -> Step:
        """Return losses of documents that no step has."""
        replicas = self.config.micro_batches(step)
        plans = [plan for replica in replicas for plan in replica]
        tokens = sum(plan.loss_tokens for plan in plans)
        seen = Step(documents={}, tokens=tokens, micro_batches=len(plans))
        with torch.no_grad():
            for replica, own in enumerate(replicas):
                for number, plan in enumerate(own):
                    stream = stream_of(self.config, step, plan)
                    passed = self.forward(stream, step, replica, number)
                    part = micro_loss(passed, stream, self.model, self._smoothing, (), ())
                    seen.documents |= _by_document(part.losses, stream.mask, stream, padding=False)
                    _add_outputs(seen.outputs, passed, stream)
        return seen

    def _keep(self, passed: Forward, part: MicroLoss, stream: Stream, replica: int, number: int) -> None:
        """Keep of step 0: losses of tokens, of routers and of prediction layers."""
        if len(self.seen.tokens) < MAX_TOKEN_LOSSES:
            self.seen.tokens += _by_token(part.losses, stream)
        for routed, balance, z in zip(passed.routed, part.balance, part.z):
            self.seen.routers.append(
                RouterLosses(
                    layer=routed.layer,
                    replica=replica,
                    micro_batch=number,
                    balance=float(balance.detach()),
                    z=float(z.detach()),
                    taken=routed.taken.sum(0).tolist(),
                    chosen=routed.chosen,
                    logits=routed.logits.detach(),
                    real=stream.documents != PAD,
                )
            )
        for depth, (losses, counted) in enumerate(zip(part.predictions, part.predicted), 1):
            self.seen.predictions.append(
                Prediction(
                    depth=depth,
                    replica=replica,
                    micro_batch=number,
                    documents=_by_document(losses, counted, stream, padding=True),
                )
            )


def _add_outputs(outputs: Outputs, passed: Forward, stream: Stream) -> None:
    """Add what layers make of the documents of a micro-batch."""
    for layer, output in enumerate(passed.outputs):
        by_document = outputs.setdefault(layer, {})
        for document in stream.indices:
            by_document[document] = output[stream.documents == document].detach()


def _by_token(losses: Tensor, stream: Stream) -> list[TokenLoss]:
    """Return the loss of each token that counts, by its position in its document."""
    counted = ((stream.mask > 0) & (stream.documents != PAD)).nonzero().flatten()
    places = zip(stream.documents[counted].tolist(), stream.positions[counted].tolist(), losses[counted].tolist())
    return [TokenLoss(document=document, position=position, loss=loss) for document, position, loss in places]


def _by_document(losses: Tensor, counted: Tensor, stream: Stream, *, padding: bool) -> dict[int, DocumentLoss]:
    """Return the loss of each document; `padding`: those with a counted label only, and slots of none as PAD."""
    found = {}
    for document in (*stream.indices, *([PAD] if padding else [])):
        mine = stream.documents == document
        tokens = int(counted[mine].sum())
        if tokens or not padding:
            found[document] = DocumentLoss(loss_sum=float(losses[mine].sum().detach()), tokens=tokens)
    return found
