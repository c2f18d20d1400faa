"""The resolved configuration of one cell: everything a rank needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache, cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from harness.core.cell.axis_values import (
    ATTENTIONS,
    DEVICES,
    DISTRIBUTED_OPTIMIZER,
    DTYPES,
    HARNESS,
    RECOMPUTE,
    TRAINERS,
)
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import NOT_TIMED, TimingConfig
from harness.core.data_paths.descriptor import DataPath
from harness.core.data_paths.table import DATA_PATHS, FORBIDDEN
from harness.core.packing.arithmetic import MicroBatch, plan_step
from harness.core.packing.documents import Document, DocumentsConfig, documents_of_step
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.core.packing.styles import PackingStyle
from harness.core.serialization import dumps, to_jsonable
from harness.core.setting import Key, keys_of, label_of, labels, setting
from harness.core.stack import DEFAULT, SAFE_NAME, safe_name

__all__ = ["CellConfig", "ModelConfig", "TrainConfig", "cell_id", "cell_name", "same_rows"]

# Their legs: core/cell/canary_legs.py.
CANARIES = ("isolation", "repetition", "order", "determinism", "padding", "truncation", "rewriting")
NOISE = "noise"  # for controls only: measures how far rounding alone moves the numbers of a dtype
DEFAULT_CANARIES = ("isolation", "repetition", "order", "padding", "truncation")  # those without a backward pass


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The short training run, the same in every layout."""

    steps: int = setting(3, doc="Training steps.", ge=1, le=10_000, aliases=("train_iters",))
    global_batch: int = setting(8, doc="Documents per step.", ge=1, le=4_096, aliases=("global_batch_size", "gbs"))
    seq_length: int = setting(
        64, doc="Tokens of a full row; longer documents are truncated to it.", ge=4, le=2**20, aliases=("seq_len",)
    )
    lr: float = setting(1e-3, doc="Learning rate.", gt=0, le=1e6)
    seed: int = setting(1234, doc="Seed of weights, tokens and lengths.", ge=0, le=2**63 - 1)


@dataclass(frozen=True, kw_only=True)
class CellConfig:
    """One point of the matrix, resolved."""

    layout: Layout
    data_path: str = setting(
        doc="Data path under test.", axis="packing", choices=tuple(DATA_PATHS), always=True, label="{}", shape=True
    )
    forbidden: str = setting(
        "",
        doc="With packing `rules`: the combination that upstream must refuse.",
        axis="forbidden",
        choices=("", *FORBIDDEN),
        values="a case of `rules`",
        label="{}",
        shape=True,
        shrink=False,
    )
    micro_batch_size: int = setting(
        1,
        doc="Rows per micro-batch.",
        axis="micro_batch_size",
        ge=1,
        le=4_096,
        aliases=("mbs",),
        label="mbs{}",
        shape=True,
    )
    dtype: str = setting(
        "fp32",
        doc="Compute dtype; fp8 is [rejected](rules.md).",
        axis="dtype",
        choices=DTYPES,
        label="{}",
        in_control=True,
    )
    # The node resolves `auto`, by what is installed.
    attention: str = setting(
        "auto",
        doc="[Attention kernel](models.md#attention-kernels); auto: the best one available.",
        axis="attention",
        choices=ATTENTIONS,
        label="{}",
        in_control=True,
    )
    device: str = setting(
        "auto",
        doc="[Where ranks compute](models.md#device); auto: on GPUs if there are any.",
        axis="device",
        choices=DEVICES,
        label="{}",
        in_control=True,
        shrink=False,
    )
    stack: str = setting(
        DEFAULT,
        doc="[Software under test](stacks.md): a name under `stacks`, or `default`, the environment of the harness.",
        axis="stack",
        check=safe_name,
        pattern=f"^{SAFE_NAME}$",
        values="a name",
        label="{}",
        in_control=True,
        shrink=False,
    )
    recompute: str = setting(
        "none",
        doc="What backward recomputes: `selective` core attention, `full` whole layers, one at a time.",
        axis="recompute",
        choices=RECOMPUTE,
        aliases=("recompute_granularity",),
    )
    distributed_optimizer: str = setting(
        "off",
        doc="Optimizer sharded over dp x cp; `overlap`: gradients reduced and weights gathered while layers compute.",
        axis="distributed_optimizer",
        choices=DISTRIBUTED_OPTIMIZER,
        label="distopt-{}",
    )
    trainer: str = setting(
        HARNESS,
        doc="[Training loop](trainers.md): the harness's own around upstream's parts, or upstream's own script.",
        axis="trainer",
        choices=TRAINERS,
        label="{}-trainer",
    )
    made_of: str = ""  # digest of the stack's definition (core.stack.digest); empty: the default stack
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    documents: DocumentsConfig = field(default_factory=DocumentsConfig)
    options: PackingOptions = DEFAULT_OPTIONS
    variant: str = ""  # how it differs from the matrix's model, train and documents: "seq_length128"; part of the name
    deadline_s: float = 120.0
    canaries: tuple[str, ...] = ()  # of CANARIES; like the deadline, not part of the cell's identity
    fingerprints: bool = True  # of gradients and activations in step 0; like the canaries, not part of the identity
    timing: TimingConfig = NOT_TIMED
    fault: str | None = None  # name of an injected fault (selftest only)
    rows_of: Layout | None = None  # for a control: it has the rows of a cell in this layout

    @property
    def row_layout(self) -> Layout:
        """The layout for which documents are padded and rows are split."""
        return self.rows_of or self.layout

    @property
    def by_rows(self) -> bool:
        """Whether gradients depend on which documents share a micro-batch, not only on the documents of the step.

        An auxiliary loss is a product of averages over the micro-batch, MTP weights a micro-batch by the tokens that
        remain after its roll, and without per-token loss all micro-batches have the same weight.
        """
        return self.model.balanced or self.model.mtp is not None or not self.options.calculate_per_token_loss

    @property
    def own_trainer(self) -> bool:
        """Whether the harness trains, not upstream's own script."""
        return self.trainer == HARNESS

    @property
    def path(self) -> DataPath:
        return DATA_PATHS[self.data_path]

    @cached_property
    def style(self) -> PackingStyle:
        return self.path.style(self.row_layout, self.train.seq_length, self.options)

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
        """Micro-batches of other documents in this cell, indexed [dp][i]. ValueError if there are too few of them."""
        return plan_step(
            documents,
            self.style,
            self.layout,
            seq_length=self.train.seq_length,
            micro_batch_size=self.micro_batch_size,
            rows_of=self.row_layout,
        )


def same_rows(config: CellConfig, control: CellConfig) -> bool:
    """Whether the gradients of a cell and its control are comparable.

    They are if micro-batches do not matter, or if both have the same ones.
    """
    if not config.by_rows:
        return True
    ours, its = ((item.data_path, item.micro_batch_size, item.style) for item in (config, control))
    return ours == its


def cell_name(config: CellConfig) -> str:
    """Readable part of the id: tp2-pp4-cp1-sft, with the axes that differ from their defaults."""
    return _joined(_shape_name(config), _own_identity(_own_values()(config)).name or None)


def _shape_name(config: CellConfig) -> str:
    own = [label_of(key, value) for key in _own_keys(True) if (value := getattr(config, key.name)) != key.default]
    return _joined(*config.layout.name_parts(), *own, *labels(config.options), config.variant or None)


@cache
def _own_keys(shape: bool) -> tuple[Key, ...]:
    """Declared fields of CellConfig that belong to a cell's shape, or those that do not."""
    return tuple(key for key in keys_of(CellConfig).values() if key.setting.shape is shape)


def _joined(*parts: str | None) -> str:
    return "-".join([part for part in parts if part is not None])


def _rows_name(layout: Layout) -> str:
    sizes = [f"{name}{getattr(layout, name)}" for name in ("tp", "pp", "cp", "dp", "vpp") if getattr(layout, name) > 1]
    return "-".join(["rows", *sizes])


class Identity(NamedTuple):
    """A part of the ids of cells, which many of them share."""

    name: str
    text: str  # hashed into the id


def shape_identity(config: CellConfig) -> Identity:
    """The common part of the ids of cells that differ only in dtype, attention, device, stack, timing or fault."""
    shared = (config.layout, config.model, config.train, config.documents, config.options)
    return Identity(_shape_name(config), "".join([f"{_text(part)}\n" for part in shared]))


# Hashed in this order. An axis that was added later is left out at its default, so that cells keep their ids and with
# them their history.
_HASHED = ("data_path", "micro_batch_size", "dtype", "attention", "stack", "fault")


@cache
def _own_fields() -> tuple[str, ...]:
    return tuple(dict.fromkeys([*_HASHED, *keys_of(CellConfig), "timing", "rows_of", "made_of"]))


@cache
def _own_values() -> Callable[[CellConfig], tuple[Any, ...]]:
    return attrgetter(*_own_fields())


@lru_cache(maxsize=4096)
def _own_identity(values: tuple[Any, ...]) -> Identity:
    """What a cell adds to the identity of its shape; `values`: of _own_fields()."""
    own = dict(zip(_own_fields(), values))
    later = [key for name, key in keys_of(CellConfig).items() if name not in (*_HASHED, "forbidden")]
    names = [label_of(key, own[key.name]) for key in _own_keys(False) if own[key.name] != key.default]
    names += [part for part in (own["fault"], own["rows_of"] and _rows_name(own["rows_of"])) if part]
    hashed: list[Any] = [own[name] for name in _HASHED]
    hashed += [own["forbidden"]] if own["forbidden"] else []
    hashed += [f"{key.name} {own[key.name]}" for key in later if own[key.name] != key.default]
    if own["timing"] != NOT_TIMED:
        timing = replace(own["timing"], turns="", first=False)  # the pair's other cell is not part of the identity
        hashed += [timing] if timing.timed else []
    hashed += [own["rows_of"]] if own["rows_of"] else []
    hashed += [f"stack {own['made_of']}"] if own["made_of"] and own["stack"] not in ("", DEFAULT) else []
    return Identity("-".join(names), _text(tuple(hashed)))


def cell_id(config: CellConfig, shape: Identity | None = None) -> str:
    """Stable id: the readable name plus an eight-digit hash of the resolved configuration and the stack's definition.

    The default stack is the environment that the harness runs in; its contents are not part of the id. `shape`: that
    of the configuration, given by callers that make many ids for one shape.
    """
    shape, own = shape or shape_identity(config), _own_identity(_own_values()(config))
    digest = hashlib.sha256((shape.text + own.text).encode()).hexdigest()
    return _joined(shape.name, own.name or None, digest[:8])


@lru_cache(maxsize=4096)
def _text(part: Any) -> str:
    """JSON of a part of a configuration; cached, since a matrix of 100,000 cells has only a few different ones."""
    return dumps([_plain(item) for item in part] if isinstance(part, tuple) else _plain(part))


def _plain(part: Any) -> Any:
    """A dataclass as its fields, without `later` fields that have their defaults."""
    if not is_dataclass(part):
        return part
    later = {name: key.default for name, key in keys_of(type(part)).items() if key.setting.later}
    plain = to_jsonable(part).items()
    return {name: value for name, value in plain if name not in later or value != later[name]}
