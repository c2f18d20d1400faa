"""The interface of a data path's adapter, which calls upstream code and gives its batches to the probe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.probe.truth import MicroTruth, StepTruth
from harness.runtime.device.placement import Device
from harness.runtime.recording.errors import UnknownNameError
from harness.upstreams.node_lookup import Unavailable


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What upstream's loss makes of a micro-batch's logits.

    `returned`: what it returns to Megatron's schedule, except for its report: the loss, and a number of tokens if
    gradients are divided by it. `losses`, `weights`: [rows, local slots], the negative log-probability that the loss
    used for each slot, detached, and its weight.
    """

    returned: tuple[Tensor, ...]
    losses: Tensor
    weights: Tensor


@dataclass(kw_only=True)
class Batch:
    """One micro-batch as a rank's model chunk gets it: [rows, local slots], int64, but loss_mask float32.

    Of a model with vision: what its language model gets; position_ids are then [axes, rows, local slots].

    Fields that a stage does not need are None. `params`: megatron.core.packed_seq_params.PackedSeqParams.
    """

    tokens: Tensor | None = None
    labels: Tensor | None = None
    loss_mask: Tensor | None = None
    position_ids: Tensor | None = None
    params: Any = None
    padding_mask: Tensor | None = None  # bool, True for slots without a token; for routers with an auxiliary loss
    whole: Any = None  # dict: arguments of a model with vision, whose forward splits rows over cp
    arguments: Any = None  # dict: more arguments of the model's forward
    loss: Any = None  # None, or upstream's loss_func: of (loss_mask, losses [rows, local slots]), (sum, tokens, report)
    not_read: Any = ()  # tuple: names of what else upstream gave the model
    # None, or dict: what else upstream's packer returned, which this model is not given, by name; that of a field above
    # is compared with the plan, and the record names what is not.
    beside: Any = None
    score: Any = None  # None, or upstream's loss: from logits [rows, local slots, vocabulary / tp] to Scored


FORWARD = {
    "tokens": "input_ids",
    "position_ids": "position_ids",
    "labels": "labels",
    "loss_mask": "loss_mask",
    "params": "packed_seq_params",
    "padding_mask": "padding_mask",
}  # field of Batch -> argument of GPTModel.forward


def batch_given(arguments: Mapping[str, Any]) -> Batch:
    """Return the batch in the arguments of GPTModel.forward, by name."""
    others = (name for name, value in arguments.items() if name not in FORWARD.values() and value is not None)
    return Batch(**{field: arguments.get(name) for field, name in FORWARD.items()}, not_read=tuple(others))


def mask_and_loss(upstream: Any) -> tuple[Tensor, Callable[[Tensor, Tensor], Any]]:
    """Return the loss mask that upstream bound to its loss function, and that function as in Batch, of any mask.

    Upstream gives the schedule partial(loss_func, loss_mask, ...); a checkout may name the mask. UnknownNameError
    where there is none.
    """
    if not isinstance(upstream, partial):
        kind = type(upstream).__name__
        raise UnknownNameError(f"upstream's forward_step returns a {kind} as its loss, not a partial that binds a mask")
    if upstream.args:
        bound, *others = upstream.args
        return bound, lambda mask, losses: upstream.func(mask, *others, losses, **upstream.keywords)
    if "loss_mask" not in upstream.keywords:
        bound = ", ".join(upstream.keywords) or "nothing"
        raise UnknownNameError(f"upstream's forward_step binds {bound} to its loss function, and no loss_mask")
    named = upstream.keywords
    return named["loss_mask"], lambda mask, losses: upstream.func(losses, **{**named, "loss_mask": mask})


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """What an adapter is made with: the cell that it feeds, and which of its ranks it is."""

    config: CellConfig
    place: Coordinates
    device: Device
    folder: Path = Path()  # the attempt's folder, shared by all ranks and kept with the run

    @property
    def is_rank_zero(self) -> bool:
        return self.place == Coordinates(tp=0, cp=0, dp=0, pp=0)

    def is_first(self, chunk: int) -> bool:
        """Return whether the chunk holds the embedding."""
        return self.place.pp == 0 and chunk == 0

    def is_last(self, chunk: int) -> bool:
        """Return whether the chunk holds the output layer and the loss."""
        layout = self.config.layout
        return self.place.pp == layout.pp - 1 and chunk == layout.vpp - 1

    def predicts(self, chunk: int) -> bool:
        """Return whether the chunk has layers for multi-token prediction."""
        mtp = self.config.model.mtp
        return mtp is not None and self.config.layout.ends(mtp.stage, self.place.pp, chunk)

    def reads_tokens(self, chunk: int) -> bool:
        """Return whether the chunk embeds tokens: the first one, and that of multi-token prediction."""
        return self.is_first(chunk) or self.predicts(chunk)

    def reads_labels(self, chunk: int) -> bool:
        """Return whether the chunk needs labels and loss masks: the last one, and that of multi-token prediction."""
        return self.is_last(chunk) or self.predicts(chunk)


class Adapter(Protocol):
    """Feeds one rank. `iterator` is called once per step and chunk, `fetch` once per micro-batch, in order.

    A path that counts the work of a step stores it as `workload` (core/packing/arithmetic.py) when `iterator` is called
    for chunk 0. A path with upstream's script has `forward_step(iterator, model)`, which trains instead of `fetch`: it
    calls the model, and returns its output, the loss mask and the loss (both as in Batch).
    """

    def __init__(self, context: RankContext) -> None: ...

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        """Return why the software under test cannot run this cell on this path; None when it can."""
        ...

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[Any] | None:
        """Return the iterator that the schedule passes to `fetch`; None on ranks that read nothing."""
        ...

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        """Return the next micro-batch; may communicate within the tensor-parallel group."""
        ...


def rows_by_slot(rows: Sequence[Tensor], micro: MicroTruth, context: RankContext) -> Tensor:
    """Return values per document as values per slot of this rank: [1, local slots] float32, for `Scored`.

    `rows`: one tensor per document of the micro-batch, in order, whole (of all context ranks); the values of its labels
    come first, later ones are left out. Slots without a label are 0.
    """
    stream = torch.zeros(micro.plan.slots, device=context.device.torch_device)
    for row, item in zip(rows, micro.plan.placed, strict=True):
        values = row[: item.document.length].float()
        stream[item.start : item.start + len(values)] = values
    return micro.local(stream, context.config.layout.cp, context.place.cp)


_Made = TypeVar("_Made")


def as_planned(made: Iterable[_Made], count: int) -> list[_Made]:
    """The first `count` of the micro-batches that upstream made, the last one again where there are fewer.

    The plan has every document in one of its `count` micro-batches, so the comparison with it shows either.
    """
    given = list(made)
    return (given + given[-1:] * count)[:count]
