"""Scans every number that a rank computed, in one pass per record: how many, and which are not finite.

Where a sum is finite its terms are too, so single losses and scores are tested only where their sum is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.run.records import DocumentLoss, LaterSeen, RankRecord, TrainingSeen
from harness.core.run.tensor_records import STORED, ActivationSeen, Fingerprint, ParameterSeen, UpdateSeen


@dataclass(frozen=True, kw_only=True)
class BadNumber:
    """A number that is not finite."""

    what: str  # e.g. "the gradient of output_layer.weight"
    value: float
    where: dict[str, Any]
    order: tuple[int, ...]  # of computation: leg, kind, layer or step


@dataclass(kw_only=True)
class Scan:
    """How many numbers a record holds, and those that are not finite."""

    numbers: int = 0
    bad: list[BadNumber] = field(default_factory=list)

    def add(self, value: float, what: str, where: dict[str, Any], order: tuple[int, ...]) -> None:
        """Count one number, and keep it if it is not finite."""
        self.numbers += 1
        if not math.isfinite(value):
            self.bad.append(BadNumber(what=what, value=value, where=where, order=order))


def scan(record: RankRecord) -> Scan:
    """Scan all legs of a record, in the order in which a rank computes them."""
    tally = Scan()
    at: dict[str, Any] = {"stage": record.place.pp, "rank": record.rank}
    _outputs(tally, record.activations, "the activation of document {} after layer {}", at | {"step": 0}, (0, 0))
    _routers(tally, record, at)
    for step in record.steps:
        where, order = at | {"step": step.step}, (0, 2, step.step)
        _documents(tally, step.documents, f"the loss of document {{}} in step {step.step}", where, order)
        _losses(tally, [token.loss for token in step.tokens], "a token's loss", where, order)
        for what, value in (
            ("the loss", step.loss_sum),
            ("the number of tokens that the loss returned", step.returned_tokens),
            ("the loss that was returned", step.returned_loss),
            ("the gradient norm", step.grad_norm),
        ):
            if value is not None:
                tally.add(value, f"{what} of step {step.step}", where, order)
    _reports(tally, record, at)
    _states(tally, record, at)
    _gradients(tally, record.parameters, "the gradient of {}", at | {"step": 0}, (0, 3))
    for parameter in record.parameters:
        if parameter.update is not None:
            where = at | {"step": 0, "parameter": parameter.name}
            _update(tally, parameter.update, parameter.name, where, last=len(record.steps) - 1)
    for scale in record.gradient_scales:
        for what, value in (("gradients", scale.dense), ("gradients of experts", scale.experts)):
            if value is not None:
                tally.add(value, f"the factor of {what}", at | {"step": 0, "chunk": scale.chunk}, (0, 3))
    for number, leg in enumerate(record.legs, 1):
        where, name = at | {"leg": leg.leg, "step": 0}, f" in canary leg {leg.leg}"
        _outputs(tally, leg.activations, "the activation of document {} after layer {}" + name, where, (number, 0))
        _documents(tally, leg.documents, "the loss of document {}" + name, where, (number, 1))
        _losses(tally, [token.loss for token in leg.tokens], "a token's loss" + name, where, (number, 1))
        tally.add(leg.loss_sum, f"the loss{name}", where, (number, 1))
        _gradients(tally, leg.parameters, "the gradient of {}" + name, where, (number, 3))
        if leg.training is not None:
            _second_training(tally, leg.training, name, at | {"leg": leg.leg}, number)
    return tally


def _second_training(tally: Scan, training: TrainingSeen, name: str, at: dict[str, Any], number: int) -> None:
    """Scan the later steps of a leg that trains; `number`: of the leg."""
    for step in training.steps:
        _later(tally, step, f"step {step.after}{name}", at | {"step": step.after}, (number, 4, step.after))
    for step in training.evaluations:
        text = f"the evaluation after step {step.after}{name}"
        _later(tally, step, text, at | {"after": step.after}, (number, 4, step.after))
    last = len(training.steps)
    for what, weights, after in (
        ("change", training.changes, 0),
        ("change over all steps", training.trained, last),
        ("merged weight", training.merged, last),
    ):
        _total(tally, weights.values())
        for parameter, value in weights.items():
            if not _good(value):
                where = at | {"step": after, "parameter": parameter}
                _fingerprint(tally, value, f"the {what} of {parameter}{name}", where, (number, 5))
    for bias in training.expert_biases:
        where = at | {"step": bias.step, "layer": bias.layer}
        _losses(tally, bias.values, f"a bias of layer {bias.layer}{name}", where, (number, 4, bias.step))


def _later(tally: Scan, recorded: LaterSeen, name: str, where: dict[str, Any], order: tuple[int, ...]) -> None:
    _documents(tally, recorded.documents, f"the loss of document {{}} in {name}", where, order)
    for what, value in (("the loss", recorded.loss_sum), ("the gradient norm", recorded.grad_norm)):
        if value is not None:
            tally.add(value, f"{what} of {name}", where, order)


def _reports(tally: Scan, record: RankRecord, at: dict[str, Any]) -> None:
    """Scan evaluations, and what upstream's trainer reports."""
    for evaluation in record.evaluations:
        name, order = f"the evaluation after step {evaluation.after}", (0, 2, evaluation.after)
        where = at | {"after": evaluation.after}
        _documents(tally, evaluation.documents, f"the loss of document {{}} in {name}", where, order)
        text = f"the activation of document {{}} after layer {{}} in {name}"
        _outputs(tally, evaluation.activations, text, where, (0, 2))
        for what, value in (("the loss", evaluation.loss_sum), ("the reported loss", evaluation.reported)):
            if value is not None:
                tally.add(value, f"{what} of {name}", where, order)
    for reported in record.reported:
        where, order = at | {"step": reported.step}, (0, 2, reported.step)
        for name in ("loss", "grad_norm", "learning_rate", "loss_scale", "flops", "packed_tokens", "packed_squares"):
            if (number := getattr(reported, name)) is not None:
                tally.add(number, f"the reported {name} of step {reported.step}", where, order)


def _states(tally: Scan, record: RankRecord, at: dict[str, Any]) -> None:
    """Scan what a checkpoint holds."""
    for state in record.states:
        for parameter in state.parameters:
            place = at | {"step": state.after, "parameter": parameter.name}
            for part, text in STORED.items():
                value = getattr(parameter, part)
                tally.numbers += 1 + len(value.projections)
                if not _good(value):
                    _fingerprint(tally, value, f"{text} of {parameter.name} after step {state.after}", place, (0, 2))


def _outputs(
    tally: Scan, layers: Iterable[ActivationSeen], what: str, where: dict[str, Any], order: tuple[int, int]
) -> None:
    for activation in layers:
        _total(tally, activation.documents.values())
        for document, value in activation.documents.items():
            if not _good(value):
                place = where | {"layer": activation.layer, "document": document}
                _fingerprint(tally, value, what.format(document, activation.layer), place, (*order, activation.layer))


def _gradients(
    tally: Scan, parameters: Iterable[ParameterSeen], what: str, where: dict[str, Any], order: tuple[int, int]
) -> None:
    for parameter in parameters:
        tally.numbers += 1 + len(parameter.gradient.projections)
        if not _good(parameter.gradient):
            _fingerprint(
                tally, parameter.gradient, what.format(parameter.name), where | {"parameter": parameter.name}, order
            )
        for part in parameter.parts:
            tally.numbers += 1 + len(part.projections)
            if not _good(part):
                text = f"part of {what.format(parameter.name)}"
                _fingerprint(tally, part, text, where | {"parameter": parameter.name}, order)


def _update(tally: Scan, update: UpdateSeen, name: str, where: dict[str, Any], *, last: int) -> None:
    """Scan what the optimizer made of a parameter; `last`: the last step, of the change over all of them."""
    values = (
        (update.first_moment, "first moment"),
        (update.second_moment, "second moment"),
        (update.change, "change"),
        (update.trained, "change over all steps"),
    )
    for value, what in values:
        if value is None:
            continue
        tally.numbers += 1 + len(value.projections)
        if not _good(value):
            place = where | {"step": last} if value is update.trained else where
            _fingerprint(tally, value, f"the {what} of {name}", place, (0, 4))


def _total(tally: Scan, values: Iterable[Fingerprint]) -> None:
    tally.numbers += sum([1 + len(value.projections) for value in values])


def _good(value: Fingerprint) -> bool:
    first, second = value.projections
    return math.isfinite(value.norm_sq) and math.isfinite(first) and math.isfinite(second)


def _fingerprint(tally: Scan, value: Fingerprint, what: str, where: dict[str, Any], order: tuple[int, ...]) -> None:
    """Record the first number of a fingerprint that is not finite."""
    bad = next(number for number in (value.norm_sq, *value.projections) if not math.isfinite(number))
    tally.bad.append(BadNumber(what=what, value=bad, where=where, order=order))


def _documents(
    tally: Scan, documents: dict[int, DocumentLoss], what: str, where: dict[str, Any], order: tuple[int, ...]
) -> None:
    tally.numbers += len(documents)
    for document, loss in documents.items():
        if not math.isfinite(loss.loss_sum):
            place = where | {"document": document}
            tally.bad.append(BadNumber(what=what.format(document), value=loss.loss_sum, where=place, order=order))


def _losses(tally: Scan, losses: Sequence[float], what: str, where: dict[str, Any], order: tuple[int, ...]) -> None:
    tally.numbers += len(losses)
    if not math.isfinite(sum(losses)):
        tally.bad += [
            BadNumber(what=what, value=loss, where=where, order=order) for loss in losses if not math.isfinite(loss)
        ]


def _routers(tally: Scan, record: RankRecord, at: dict[str, Any]) -> None:
    """Scan routers and prediction heads of step 0, and the scale of auxiliary losses."""
    where = at | {"step": 0}
    if record.aux_scale is not None:
        tally.add(record.aux_scale, "the scale of auxiliary losses", where, (0, 1))
    for router in record.routers:
        place, name = where | {"layer": router.layer, "micro_batch": router.micro_batch}, f"of layer {router.layer}"
        for share in (*router.real, *router.padding):
            _losses(tally, share.scores, f"a router score {name}", place, (0, 1, router.layer))
            if share.squares is not None:
                tally.add(share.squares, f"the sum of squares {name}", place, (0, 1, router.layer))
        for what, value in (
            ("the auxiliary loss", router.aux_loss),
            ("its weighted value", router.aux_weighted),
            ("the z-loss", router.z_loss),
            ("its weighted value", router.z_weighted),
        ):
            if value is not None:
                tally.add(value, f"{what} {name}", place, (0, 1, router.layer))
    for followed in record.followed:
        at_step = at | {"step": followed.step, "layer": followed.layer}
        for what, value in (("the shortfall", followed.shortfall), ("the rounding", followed.rounding)):
            tally.add(value, f"{what} of scores of layer {followed.layer}", at_step, (0, 2, followed.step))
    for bias in record.expert_biases:
        at_step = at | {"step": bias.step, "layer": bias.layer}
        _losses(tally, bias.values, f"a bias of layer {bias.layer}", at_step, (0, 2, bias.step))
    for head in record.mtp:
        place = where | {"depth": head.depth, "micro_batch": head.micro_batch}
        what = f"the loss of document {{}} at prediction depth {head.depth}"
        _documents(tally, head.documents, what, place, (0, 2, 0))
