"""The resolved configuration of one cell: all that a rank needs, and nothing it must look up."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from harness.words.documents import Document, DocumentsConfig, documents_of_step
from harness.words.jsonable import dumps, to_jsonable
from harness.words.layout import Layout
from harness.words.model import ModelConfig
from harness.words.packing import MicroBatch, plan_step
from harness.words.packing_options import DEFAULT_OPTIONS, PackingOptions
from harness.words.packing_style import PackingStyle, packing_style
from harness.words.stack import DEFAULT
from harness.words.timing import NOT_TIMED, TimingConfig

__all__ = ["DATA_PATHS", "FORBIDDEN", "CellConfig", "ModelConfig", "TrainConfig", "cell_id", "cell_name", "same_rows"]

FORBIDDEN = (  # cases of the data path `rules`
    "offline-micro-batch-2",
    "in-batch-micro-batch-1",
    "cp-seq-length",
    "cp-mean-loss",
    "cp-average-in-collective",
    "pad-cu-seqlens-free-rows",
    "offline-and-in-batch",
    "pad-cu-seqlens-no-metadata",
    "in-batch-opt-out",
    "megatron-cp-seq-length",
)
CANARIES = ("isolation", "repetition", "order", "determinism", "padding", "truncation", "rewriting")  # words/legs.py
NOISE = "noise"  # of reference cells only: measures what a dtype's rounding makes of nothing
DEFAULT_CANARIES = ("isolation", "repetition", "order", "padding", "truncation")  # those without a backward
DATA_PATHS = (
    "unpacked",
    "reference",
    "sft",
    "scheduler",
    "skyrl",
    "bridge_offline",
    "bridge_in_batch",
    "bridge_long",
    "rules",
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The short training run. `global_batch` counts documents per step, in every layout the same."""

    steps: int = 3
    global_batch: int = 8
    seq_length: int = 64
    lr: float = 1e-3
    seed: int = 1234


@dataclass(frozen=True, kw_only=True)
class CellConfig:
    """One point of the matrix, resolved."""

    layout: Layout
    data_path: str  # the `packing` axis
    micro_batch_size: int = 1
    dtype: str = "fp32"
    attention: str = "auto"  # one of words.attention.ATTENTIONS; resolved on the node by what is there
    device: str = "auto"  # one of words.devices.DEVICES; likewise
    stack: str = DEFAULT
    made_of: str = ""  # digest of what the stack asks for (words.stack.digest); empty: the default one
    forbidden: str = ""  # data path `rules`: the combination that upstream must refuse
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    documents: DocumentsConfig = field(default_factory=DocumentsConfig)
    options: PackingOptions = DEFAULT_OPTIONS
    variant: str = ""  # what differs from the matrix's model, train and documents: "seq_length128"; part of the name
    deadline_s: float = 120.0
    canaries: tuple[str, ...] = ()  # of CANARIES; like the deadline no part of what the cell is
    fingerprints: bool = True  # of gradients and activations in step 0; like the canaries no part of what the cell is
    timing: TimingConfig = NOT_TIMED
    fault: str | None = None  # name of an injected fault (selftest only)
    rows_of: Layout | None = None  # of a control: its rows are those of a cell of this layout

    @property
    def row_layout(self) -> Layout:
        """The layout that documents are padded and rows are split for."""
        return self.rows_of or self.layout

    @property
    def by_rows(self) -> bool:
        """Whether gradients depend on which documents share a micro-batch, not only on the documents of the step.

        An auxiliary loss is a product of averages over the micro-batch, MTP weighs a micro-batch by the tokens that
        its roll leaves, and without per-token loss each micro-batch has the same weight.
        """
        return self.model.balanced or self.model.mtp is not None or not self.options.calculate_per_token_loss

    @cached_property
    def style(self) -> PackingStyle:
        return packing_style(self.data_path, self.row_layout, self.train.seq_length, self.options)

    def documents_of(self, step: int) -> list[Document]:
        return documents_of_step(
            self.documents,
            seed=self.train.seed,
            step=step,
            count=self.train.global_batch,
            seq_length=self.train.seq_length,
        )

    def micro_batches(self, step: int) -> list[list[MicroBatch]]:
        """Micro-batches of one step, indexed [dp][i]."""
        return self.packed(self.documents_of(step))

    def packed(self, documents: Sequence[Document]) -> list[list[MicroBatch]]:
        """Micro-batches of other documents in this cell, indexed [dp][i]. ValueError if they are too few for it."""
        return plan_step(
            documents,
            self.style,
            self.layout,
            seq_length=self.train.seq_length,
            micro_batch_size=self.micro_batch_size,
            rows_of=self.row_layout,
        )


def same_rows(config: CellConfig, control: CellConfig) -> bool:
    """Whether gradients of a cell and of its control may be compared: their micro-batches hold the same slots."""
    if not config.by_rows:
        return True
    ours, its = ((item.data_path, item.micro_batch_size, item.style) for item in (config, control))
    return ours == its


def cell_name(config: CellConfig) -> str:
    """Readable part of the id: tp2-pp4-cp1-sft, with the axes that differ from their defaults."""
    return _name(_shape_name(config), config)


def _shape_name(config: CellConfig) -> str:
    layout = config.layout
    parts = [f"tp{layout.tp}", f"pp{layout.pp}", f"cp{layout.cp}"]
    parts += [f"{name}{getattr(layout, name)}" for name in ("dp", "ep", "vpp") if getattr(layout, name) > 1]
    if layout.tp > 1 and not layout.sp:
        parts.append("nosp")
    parts += [config.data_path] + ([config.forbidden] if config.forbidden else [])
    if config.micro_batch_size > 1:
        parts.append(f"mbs{config.micro_batch_size}")
    parts += config.options.name_parts()
    return "-".join(parts + ([config.variant] if config.variant else []))


def _name(shape: str, config: CellConfig) -> str:
    parts = [shape]
    if config.dtype != "fp32":
        parts.append(config.dtype)
    parts += [value for value in (config.attention, config.device) if value != "auto"]
    if config.stack != DEFAULT:
        parts.append(config.stack)
    if config.fault:
        parts.append(config.fault)
    if config.rows_of:
        parts.append(_rows_name(config.rows_of))
    return "-".join(parts)


def _rows_name(layout: Layout) -> str:
    sizes = [f"{name}{getattr(layout, name)}" for name in ("tp", "pp", "cp", "dp", "vpp") if getattr(layout, name) > 1]
    return "-".join(["rows", *sizes])


class ShapeIdentity(NamedTuple):
    """What the ids of cells have in common that differ only in dtype, attention, device, stack, timing or fault."""

    name: str
    text: str  # what is hashed of them

    @classmethod
    def of(cls, config: CellConfig) -> ShapeIdentity:
        shared = (config.layout, config.model, config.train, config.documents, config.options)
        return cls(_shape_name(config), "".join([f"{_text(part)}\n" for part in shared]))


def cell_id(config: CellConfig, shape: ShapeIdentity | None = None) -> str:
    """Stable id: the readable name plus eight hex digits of the resolved configuration and of what the stack asks for.

    The default stack is the environment that the harness runs in: what it holds is no part of the id. `shape`: that of
    the configuration, where the ids of many cells of one shape are made.
    """
    shape = shape or ShapeIdentity.of(config)
    rest: tuple[Any, ...] = (
        config.data_path,
        config.micro_batch_size,
        config.dtype,
        config.attention,
        config.stack,
        config.fault,
    )
    rest += (config.forbidden,) if config.forbidden else ()
    rest += (f"device {config.device}",) if config.device != "auto" else ()
    if config.timing != NOT_TIMED:
        timed = replace(config.timing, turns="", first=False)  # whom a cell takes turns with is no part of what it is
        rest += (timed,) if timed.asked else ()
    rest += (config.rows_of,) if config.rows_of else ()
    rest += (f"stack {config.made_of}",) if config.made_of and config.stack not in ("", DEFAULT) else ()
    digest = hashlib.sha256((shape.text + _text(rest)).encode()).hexdigest()
    return f"{_name(shape.name, config)}-{digest[:8]}"


@lru_cache(maxsize=4096)
def _text(part: Any) -> str:
    """JSON of a shared part; cached, since a matrix of 100,000 cells has only a few of each.

    Kinds of model that a cell does not have leave no trace, so that a new kind changes no id of a cell without it.
    """
    if isinstance(part, tuple):
        later = ("full_rows", "warmup", "tokens")
        part = [_without_defaults(item, *later) if isinstance(item, TimingConfig) else item for item in part]
    if isinstance(part, ModelConfig):
        plain = _without_defaults(part, "rope_fusion", "cuda_graphs")
        part = {name: value for name, value in plain.items() if value is not None}
    return dumps(part)


def _without_defaults(part: Any, *names: str) -> dict[str, Any]:
    """The fields of a dataclass; those in `names`, which came later than ids, only where they say something."""
    later = {item.name: item.default for item in fields(part) if item.name in names}
    plain = to_jsonable(part).items()
    return {name: value for name, value in plain if name not in later or value != later[name]}
