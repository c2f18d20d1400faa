"""A rule of sequence packing: an id, its source, and a predicate that returns why it forbids a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.data_paths.descriptor import DataPath
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.documents import Document, DocumentsConfig
from harness.core.packing.options import PackingOptions, PackingStyle


class Shape(Protocol):
    """The part of a cell that determines its rows and its model, which most rules read.

    Cells of one shape differ only in dtype, attention, device and stack. A rule typed to take a Shape cannot read
    those, so its result holds for all cells of the shape.
    """

    @property
    def layout(self) -> Layout: ...
    @property
    def data_path(self) -> str: ...
    @property
    def path(self) -> DataPath: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def forbidden(self) -> str: ...
    @property
    def lift(self) -> str: ...
    @property
    def model(self) -> ModelConfig: ...
    @property
    def train(self) -> TrainConfig: ...
    @property
    def documents(self) -> DocumentsConfig: ...
    @property
    def options(self) -> PackingOptions: ...
    @property
    def style(self) -> PackingStyle: ...
    def documents_of(self, step: int) -> list[Document]: ...
    def micro_batches(self, step: int) -> list[list[MicroBatch]]: ...


Config = TypeVar("Config", contravariant=True)


class Own(NamedTuple):
    """The values of a cell that its Shape does not have."""

    attention: str
    dtype: str
    device: str
    stack: str
    trainer: str
    arguments: bool  # whether it has any
    recompute: str = ""
    groups: str = ""
    resumes: bool = False


def own_of(config: CellConfig) -> Own:
    given = bool(config.args.given)
    return Own(
        config.attention,
        config.dtype,
        config.device,
        config.stack,
        config.trainer,
        given,
        config.recompute,
        config.groups,
        bool(config.resume),
    )


def _always(own: Own) -> bool:
    return True


@dataclass(frozen=True)
class Rule(Generic[Config]):
    """`predicate` returns None if the cell is allowed, else the reason, with the arithmetic in the user's numbers.

    `concerns`: whether the rule can forbid any cell with these values, asked once for all of them. `part`: the part of
    the model without which it forbids nothing, e.g. "moe"; `path`: the only data path that it can forbid; empty: any.
    """

    id: str
    source: str
    predicate: Callable[[Config], str | None]
    concerns: Callable[[Own], bool] = _always
    part: str = ""
    path: str = ""

    def concerns_shape(self, data_path: str, model: ModelConfig) -> bool:
        """Whether the rule can forbid any cell of this data path and model."""
        return (not self.path or self.path == data_path) and (not self.part or bool(getattr(model, self.part)))


def not_divisible(what: str, value: int, by: str, divisor: int) -> str | None:
    """'model.layers 4 is not divisible by pp 3 x vpp 1 = 3: 4 = 1 * 3 + 1', or None when it is."""
    if value % divisor == 0:
        return None
    return f"{what} {value} is not divisible by {by}: {value} = {value // divisor} * {divisor} + {value % divisor}"
