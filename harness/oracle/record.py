"""The record of the oracle: what it computes of a cell, as one rank would record it.

It computes it twice: in float64, which is what the ranks are compared with, and in the cell's dtype. The distance
between the two is what rounding does to each number, from which bounds follow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.cell.modelled import not_modelled_in
from harness.core.cell.schedule import Schedule
from harness.core.run.records import (
    PROJECTIONS,
    BuiltSeen,
    EvaluationSeen,
    ExpertBiasSeen,
    ExpertShare,
    LaterSeen,
    LegSeen,
    MtpSeen,
    RankRecord,
    RouterSeen,
    StepSeen,
    TrainingSeen,
    UpdateApart,
)
from harness.core.run.tensor_records import ActivationSeen, Fingerprint, ParameterSeen, UpdateSeen
from harness.features.vision.config import TOWER
from harness.oracle.both_ways import BothWays
from harness.oracle.choices import NO_CHOICES, Choices, followed
from harness.oracle.drawing import draw
from harness.oracle.fields import Model, Optimizer, uncovered
from harness.oracle.rows import stream_of
from harness.oracle.train import Oracle, Outputs, RouterLosses, Step, Trained

_ONE_RANK = Coordinates(tp=0, cp=0, dp=0, pp=0)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def record_of(cell: str, config: CellConfig, built: Sequence[BuiltSeen], choices: Choices = NO_CHOICES) -> RankRecord:
    """Return what the oracle computes of a cell whose ranks built a model with `built`, if nothing is `not_modelled`.

    `choices`: of their routers, where it follows them; after a resume also those before it.
    """
    exact = Oracle.of(config, built, choices=choices)
    # The same choices: a router that rounding turned elsewhere would make every number after it incomparable.
    rounded = Oracle.of(config, built, _DTYPES[config.dtype], choices)
    ways = BothWays(exact)
    for gradients, moved in zip(exact.updates(), rounded.updates(), strict=True):
        ways.add(gradients, moved)
    found = _as_rank(cell, config, exact.seen)
    found.legs = [_second_training(_as_rank(cell, config, rounded.seen), ways.apart())]
    steps = {*config.steps, *(config.train.steps + number for number in config.evaluations)}
    own = {place: ranked for place, ranked in exact.seen.ranked.items() if place[0] in steps}
    found.followed = followed(own, rounded.seen.ranked)
    return found


def key_of(config: CellConfig, built: Sequence[BuiltSeen], choices: Choices = NO_CHOICES) -> str:
    """Return a digest of all that the oracle reads: two cells with the same digest share its results."""
    model, settings = Model.read(built, config.model.peft, config.model.pattern), Optimizer.read(built)
    facts = (model, settings, Schedule.of(config), config.train, config.evaluated, config.dtype)
    # repr of frozen dataclasses is complete and in the order of the fields; a new field changes the key by itself.
    digest = hashlib.sha256(repr((*facts, config.path.counted, config.step_mean)).encode())
    if choices:
        digest.update(repr(config.start_step).encode())  # which of them the record is about
    for place, choice in choices.items():
        digest.update(repr((place, choice.chosen.tolist(), choice.preferred is None)).encode())
        for more in (choice.preferred, choice.taken):
            digest.update(b"" if more is None else more.numpy().tobytes())
    limited = model.experts is not None and model.experts.capacity is not None
    for step in range(config.train.steps + len(config.evaluated)):
        for number, replica in enumerate(config.micro_batches(step)):
            for plan in replica:
                stream = stream_of(config, step, plan)
                tensors = [
                    stream.tokens,
                    stream.labels,
                    stream.mask,
                    stream.positions,
                    stream.documents,
                    stream.counted,
                    stream.places.positions,
                    # The pixels; grids follow as text, since they are no tensor.
                    *(stream.images[:1] if stream.images else ()),
                ]
                for tensor in (*tensors, *(stream.shares if limited else ())):
                    digest.update(tensor.numpy().tobytes())
                lengths = [(item.document.index, item.document.length) for item in plan.placed]
                grids = stream.images.grids if stream.images else ()
                shares = [len(share) for share in stream.shares] if limited else []
                digest.update(repr((step, number, stream.segments, stream.rows, lengths, grids, shares)).encode())
    return digest.hexdigest()[:32]


def not_modelled(config: CellConfig, built: Sequence[BuiltSeen]) -> str:
    """Return what of a cell, or of what upstream built, the oracle does not model; empty if it can compute all."""
    return not_modelled_in(config) or ", ".join(f"{name} {value}" for name, value in uncovered(built))


def _as_rank(cell: str, config: CellConfig, trained: Trained) -> RankRecord:
    evaluations = [trained.evaluations[number] for number in sorted(trained.evaluations)]
    return RankRecord(
        cell=cell,
        rank=0,
        place=_ONE_RANK,
        ended="completed",
        steps=[_step(number, step, trained) for number, step in enumerate(trained.steps)],
        evaluations=[
            EvaluationSeen(
                after=after,
                micro_batches=seen.micro_batches,
                loss_sum=seen.loss_sum,
                token_count=seen.tokens,
                documents=seen.documents,
                activations=_activations(config, trained.model, seen.outputs),
            )
            for after, seen in zip(config.evaluated, evaluations, strict=True)
        ],
        parameters=_parameters(trained, config.train.seed),
        activations=_activations(config, trained.model, trained.steps[0].outputs),
        routers=[_router(seen) for seen in trained.routers],
        expert_biases=[
            ExpertBiasSeen(step=number, layer=layer, values=values)
            for number, step in enumerate(trained.steps)
            for layer, values in step.biases.items()
        ],
        mtp=[
            MtpSeen(depth=seen.depth, micro_batch=seen.micro_batch, documents=seen.documents)
            for seen in trained.predictions
        ],
    )


def _step(number: int, step: Step, trained: Trained) -> StepSeen:
    return StepSeen(
        step=number,
        micro_batches=step.micro_batches,
        loss_sum=step.loss_sum,
        token_count=step.tokens,
        grad_norm=step.gradient_norm,
        rates=[step.learning_rate],
        decays=sorted({step.weight_decay if seen.gradient.dim() > 1 else 0.0 for seen in trained.parameters.values()}),
        documents=step.documents,
        tokens=[] if number else trained.tokens,
    )


def _parameters(trained: Trained, seed: int) -> list[ParameterSeen]:
    found = []
    for name, seen in trained.parameters.items():
        gradient, first, second, change, all_changes = (
            fingerprint(name, tensor, seed)
            for tensor in (seen.gradient, seen.first_moment, seen.second_moment, seen.change, seen.trained)
        )
        update = UpdateSeen(first_moment=first, second_moment=second, change=change, trained=all_changes)
        parts = _parts(name, seen.gradient, seed)
        found.append(ParameterSeen(name=name, sharded=False, gradient=gradient, parts=parts, update=update))
    return found


def fingerprint(name: str, tensor: Tensor, seed: int) -> Fingerprint:
    """Sum of squares and projections of a whole tensor, as ranks record them (probe/hooks/fingerprints.py)."""
    return _printed(tensor, _vectors(name, tuple(tensor.shape), seed))


def _printed(tensor: Tensor, vectors: Sequence[Tensor]) -> Fingerprint:
    whole = tensor.double()
    projections = [float((whole * vector).sum()) for vector in vectors]
    return Fingerprint(norm_sq=float(whole.square().sum()), projections=projections)


@cache
def _vectors(name: str, shape: tuple[int, ...], seed: int) -> tuple[Tensor, ...]:
    return tuple(draw(f"projection-{number}", name, shape, seed).double() for number in range(PROJECTIONS))


# The dimension in which tensor parallelism splits a weight; norms, routers and other biases are whole on every rank.
_BY_ROWS = re.compile(
    r"(word_embeddings|output_layer|eh_proj)\.weight$|linear_(qkv|fc1|q_proj|q_up_proj|kv_up_proj)\.|softmax_offset$"
)
_BY_COLUMNS = re.compile(r"linear_(proj|fc2)\.weight$")
_PART_COUNTS = (8, 4, 2)  # enough to compose the shards of tp 2, 4 and 8


def _parts(name: str, tensor: Tensor, seed: int) -> list[Fingerprint]:
    """Return fingerprints of the parts into which tensor parallelism would split a tensor, for the most ranks that it
    can.

    Gate and up projection of a feed-forward block are stacked, and each is split; an image tower has no gates.
    """
    dim = 0 if _BY_ROWS.search(name) else 1 if _BY_COLUMNS.search(name) else None
    if dim is None:
        return []
    stacked = "linear_fc1." in name and "linear_in." not in name and ".adapter_" not in name
    pieces = 2 if stacked and not name.startswith(TOWER) else 1
    count = next((n for n in _PART_COUNTS if tensor.shape[dim] % (pieces * n) == 0), 0)

    def part(whole: Tensor, number: int) -> Tensor:
        return torch.cat([piece.chunk(count, dim)[number] for piece in whole.chunk(pieces, dim)], dim)

    vectors = _vectors(name, tuple(tensor.shape), seed)
    return [_printed(part(tensor, n), [part(vector, n) for vector in vectors]) for n in range(count)]


def _activations(config: CellConfig, model: Model, outputs: Outputs) -> list[ActivationSeen]:
    shape, seed = (config.train.seq_length, model.hidden), config.train.seed
    vectors = [draw(f"position-{number}", "activation", shape, seed).double() for number in range(PROJECTIONS)]
    return [
        ActivationSeen(
            layer=layer,
            documents={
                document: _printed(output, [vector[: len(output)] for vector in vectors])
                for document, output in documents.items()
            },
        )
        for layer, documents in outputs.items()
    ]


def _router(seen: RouterLosses) -> RouterSeen:
    shares = [
        ExpertShare(
            tokens=int(mine.sum()),
            counts=seen.chosen[mine].sum(0).tolist(),
            scores=seen.logits[mine].softmax(-1).sum(0).tolist(),
        )
        for mine in (seen.real, ~seen.real)
    ]
    return RouterSeen(
        layer=seen.layer,
        micro_batch=seen.micro_batch,
        real=shares[:1],
        padding=shares[1:],
        aux_loss=seen.balance,
        z_loss=seen.z,
    )


def _second_training(seen: RankRecord, apart: dict[str, UpdateApart]) -> LegSeen:
    first, later = seen.steps[0], seen.steps[1:]
    return LegSeen(
        leg="noise-dtype",
        loss_sum=first.loss_sum or 0.0,
        token_count=first.token_count or 0,
        documents=first.documents,
        parameters=[replace(one, parts=[], update=None) for one in seen.parameters],
        activations=seen.activations,
        training=TrainingSeen(
            steps=[_later(step, step.step) for step in later],
            evaluations=[_later(evaluation, evaluation.after) for evaluation in seen.evaluations],
            changes={},
            trained={},
            merged={},
            expert_biases=seen.expert_biases,
            apart=apart,
        ),
    )


def _later(seen: StepSeen | EvaluationSeen, after: int) -> LaterSeen:
    found = LaterSeen(after=after, loss_sum=seen.loss_sum or 0.0, documents=seen.documents)
    if isinstance(seen, StepSeen):
        return replace(found, grad_norm=seen.grad_norm)
    return replace(found, activations=seen.activations)
