"""The resolved configuration of one cell: everything a rank needs, with the sections and values it is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from harness.core.cell.arguments import NO_ARGUMENTS, Arguments
from harness.core.cell.axis_values import (
    ATTENTIONS,
    DEVICES,
    DISTRIBUTED_OPTIMIZER,
    DTYPES,
    GROUPS,
    HARNESS,
    LR_DECAY_STYLES,
    RECOMPUTE,
    TRAINERS,
    WEIGHT_DECAY_STYLES,
    WSD_DECAY_STYLES,
)
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import NOT_TIMED, TimingConfig
from harness.core.packing.arithmetic import MicroBatch, Row, dealt, undealt
from harness.core.packing.documents import Document, DocumentsConfig, documents_of_step
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.core.packing.packers import PackingStyle, plan_step, row_of
from harness.core.setting import setting
from harness.core.stack import DEFAULT, SAFE_NAME, stack_name
from harness.upstreams.descriptor import DataPath
from harness.upstreams.megatron_lm.spec import packed_of_documents
from harness.upstreams.table import DATA_PATHS

__all__ = ["CellConfig", "ModelConfig", "TrainConfig"]

# Their legs: core/cell/canary_legs.py.
CANARIES = ("isolation", "repetition", "order", "determinism", "padding", "truncation")
NOISE = "noise"  # for controls only: measures how far rounding alone moves the numbers of a dtype
DEFAULT_CANARIES = ("isolation", "repetition", "order", "padding", "truncation")  # those without a backward pass
SAME_LAYOUT = "same"  # of the axis `resume`
_RESUMED_SIZES = ("tp", "pp", "cp", "vpp")
_RESUMED_PART = re.compile(rf"({'|'.join(_RESUMED_SIZES)})([1-9][0-9]{{0,3}})")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The short training run, the same in every layout."""

    steps: int = setting(
        3,
        doc="Training steps; 0: batches of a first step are fetched and compared, and nothing is trained.",
        ge=0,
        le=10_000,
        aliases=("train_iters",),
    )
    global_batch: int = setting(8, doc="Documents per step.", ge=1, le=4_096, aliases=("global_batch_size", "gbs"))
    seq_length: int = setting(
        64,
        doc="Tokens of a full row; longer documents are truncated to it. Above 1,048,576 with steps 0 only.",
        ge=4,
        le=2**25,
        aliases=("seq_len",),
    )
    lr: float = setting(1e-3, doc="Learning rate.", gt=0, le=1e6)
    seed: int = setting(1234, doc="Seed of weights, tokens and lengths.", ge=0, le=2**63 - 1)
    eval_interval: int = setting(
        0, doc="Evaluate after every so many steps, and once more at the end; 0: never.", ge=0, le=10_000, later=True
    )
    save_step: int = setting(
        1,
        doc="With the axis `resume`: save a checkpoint after this many steps.",
        ge=1,
        le=9_999,
        aliases=("save_interval",),
        later=True,
    )
    label_smoothing: float = setting(
        0.0,
        doc="Share of a target's probability that all other tokens get. Above 0 the loss is computed from the logits "
        "of the model, by upstream's `vocab_parallel_cross_entropy`.",
        ge=0,
        le=0.99,
        later=True,
    )
    eod_mask_loss: bool = setting(
        True,
        doc="The token that ends a document has no label; false, Megatron-LM's default: the first token of the next "
        "document is its label. All documents then begin with the same token, and fill their rows.",
        label="eodlabels",
        later=True,
    )
    # The schedules of Megatron's OptimizerParamScheduler: core/cell/schedule.py.
    lr_decay_style: str = setting(
        "constant",
        doc="How the learning rate falls from `lr` to `min_lr` after the warm-up; `WSD`: only in the last "
        "`lr_wsd_decay_iters` steps.",
        choices=LR_DECAY_STYLES,
        label="{}",
        later=True,
    )
    lr_decay_iters: int | None = setting(
        None,
        doc="The step at which the learning rate is `min_lr`; if omitted, `steps`.",
        ge=1,
        le=10**9,
        label="decay{}",
        later=True,
    )
    min_lr: float = setting(
        0.0, doc="Learning rate at the end of its decay.", ge=0, le=1e6, label="minlr{}", later=True
    )
    lr_warmup_iters: int = setting(
        0, doc="Steps in which the learning rate rises to `lr`.", ge=0, le=10**9, label="warm{}", later=True
    )
    lr_warmup_fraction: float | None = setting(
        None,
        doc="The same as a share of `lr_decay_iters`, in place of `lr_warmup_iters`.",
        gt=0,
        le=1,
        label="warm{}",
        later=True,
    )
    lr_warmup_init: float = setting(
        0.0, doc="Learning rate of the first step of a warm-up.", ge=0, le=1e6, label="from{}", later=True
    )
    lr_wsd_decay_iters: int | None = setting(
        None, doc="Steps in which `WSD` (warm-up, stable, decay) decays.", ge=1, le=10**9, label="wsdecay{}", later=True
    )
    lr_wsd_decay_style: str = setting(
        "exponential",
        doc="How the learning rate falls in them.",
        choices=WSD_DECAY_STYLES,
        label="wsdecay{}",
        later=True,
    )
    start_weight_decay: float | None = setting(
        None,
        doc="Weight decay of the first step, of a decay that is not constant; a constant one is the argument "
        "[`weight-decay`](trainers.md#arguments).",
        ge=0,
        le=1e6,
        label="wd{}",
        later=True,
    )
    end_weight_decay: float | None = setting(
        None, doc="Weight decay after `steps` steps.", ge=0, le=1e6, label="to{}", later=True
    )
    weight_decay_incr_style: str = setting(
        "constant", doc="How the weight decay grows.", choices=WEIGHT_DECAY_STYLES, label="wd{}", later=True
    )

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The number of finished steps at each evaluation, as in Megatron-LM's `train` and `pretrain`.

        Documents of evaluation n are those of step `steps` + n, which training does not have.
        """
        if not self.eval_interval or not self.steps:
            return ()
        return (*range(self.eval_interval, self.steps + 1, self.eval_interval), self.steps)

    @property
    def passes(self) -> int:
        """Steps and evaluations."""
        return self.steps + len(self.evaluated)


def read_resume(value: Any) -> Any:
    """Return a file's value: null says that a cell does not resume."""
    return "" if value is None else value


def checked_resume(value: str) -> str:
    """Return the value itself; ValueError if it is neither `same` nor sizes such as tp1-pp4."""
    if value not in ("", SAME_LAYOUT):
        _resumed_sizes(value)
    return value


def resumed_layout(value: str, layout: Layout) -> Layout:
    """Return the layout in which a cell of `layout` continues: its own sizes where `value` has none, and as many ranks.

    ValueError if the ranks cannot be split so.
    """
    if value == SAME_LAYOUT:
        return layout
    sizes = {name: getattr(layout, name) for name in _RESUMED_SIZES} | _resumed_sizes(value)
    each = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if layout.world_size % each:
        raise ValueError(f"{layout.world_size} ranks are not divisible by tp x pp x cp = {each}")
    sp = sizes["tp"] > 1 and (layout.sp or layout.tp == 1)
    same_stages = (sizes["pp"], sizes["vpp"]) == (layout.pp, layout.vpp)
    stages = layout if same_stages else layout.split_evenly  # what is said of other stages fits no longer
    return replace(stages, **sizes, dp=layout.world_size // each, sp=sp)


def split_for_both(layout: Layout, other: Layout) -> Layout:
    """Return the layout with as many replicas as it takes for a number of rows that suits both."""
    stages = layout.pp if layout.vpp > 1 else 1
    needed = math.lcm(layout.dp * stages, other.dp * (other.pp if other.vpp > 1 else 1))
    return replace(layout, dp=needed // stages)


def _resumed_sizes(value: str) -> dict[str, int]:
    parts = [_RESUMED_PART.fullmatch(part) for part in value.split("-")]
    found = {part[1]: int(part[2]) for part in parts if part}
    if len(found) != len(parts):
        raise ValueError(
            f"must be {SAME_LAYOUT}, or sizes of {', '.join(_RESUMED_SIZES)} such as tp1-pp4, each at most once"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class CellConfig:
    """One point of the matrix, resolved."""

    layout: Layout
    data_path: str = setting(
        doc="Data path under test.", axis="packing", choices=DATA_PATHS.keys(), always=True, label="{}", leads=True
    )
    lift: str = setting(
        "",
        doc="Id of a [rule](rules.md#lifted-rules) that does not reject the cell, to see what upstream makes of it.",
        axis="lift",
        values="a rule's id",
        label="lift-{}",
        leads=True,
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
        leads=True,
    )
    dtype: str = setting(
        "fp32",
        doc="Compute dtype.",
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
        doc="[Software under test](stacks.md): a name under `stacks`, a [recipe](stacks.md#recipes), or `default`, the "
        "environment of the harness.",
        axis="stack",
        check=stack_name,
        pattern=f"^({SAFE_NAME}|[a-z0-9-]+==[A-Za-z0-9.]+)$",
        values="a name",
        label="{}",
        in_control=True,
        shrink=False,
    )
    recompute: str = setting(
        "none",
        doc="What backward recomputes: `selective` core attention, `full` whole layers, one at a time, `full-split` "
        "whole layers from inputs split over tp.",
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
    groups: str = setting(
        GROUPS[0],
        doc="[Process groups](models.md#process-groups) of the model: Megatron's global ones, or passed explicitly.",
        axis="groups",
        choices=GROUPS,
    )
    trainer: str = setting(
        HARNESS,
        doc="[Training loop](trainers.md): the harness's own around upstream's parts, or upstream's own.",
        axis="trainer",
        choices=TRAINERS,
        label="{}-trainer",
    )
    resume: str = setting(
        "",
        doc="Continue in new processes from a [checkpoint](trainers.md#checkpoints) of mid-training, in the same "
        "layout or in another one of as many ranks; sizes that are not named stay, and dp follows.",
        axis="resume",
        read=read_resume,
        check=checked_resume,
        values="`null`, `same`, or sizes such as `tp1-pp4`",
        label="resume-{}",
    )
    data_files: int = setting(
        1,
        doc="Files that the rows of an upstream trainer are in; it [blends](trainers.md#data) them with equal weights.",
        axis="data_files",
        ge=1,
        le=8,
        label="{}-files",
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
    operations: int | None = None  # the layer whose operations are recorded, 0 the embedding; not part of the identity
    args: Arguments = NO_ARGUMENTS  # of upstream's trainer
    timing: TimingConfig = NOT_TIMED
    fault: str | None = None  # name of an injected fault (selftest only)
    saved_in: Layout | None = None  # of the part of a cell that continues from a checkpoint: the layout that saved it

    @property
    def row_layout(self) -> Layout:
        """The layout for which documents are padded and rows are split; before and after a resume into as many."""
        other = None if self.packed_later else self._other_layout
        return self.layout if other is None else split_for_both(self.layout, other)

    @property
    def _other_layout(self) -> Layout | None:
        """That of the other part of a cell that resumes; None if the ranks cannot be split so."""
        with suppress(ValueError):
            return self.saved_in or (resumed_layout(self.resume, self.layout) if self.resume else None)
        return None

    @property
    def by_rows(self) -> bool:
        """Whether gradients depend on which documents share a micro-batch, not only on the documents of the step.

        An auxiliary loss is a product of averages over the micro-batch; a z-loss, a bias of experts and their capacity
        count its padding; MTP weights a micro-batch by the tokens that remain after its roll; without per-token loss
        all micro-batches have the same weight.
        """
        return self.model.by_rows or not self.token_mean

    @property
    def token_mean(self) -> bool:
        """Whether every token of a step has the same weight in its loss."""
        return self.options.calculate_per_token_loss or self.path.step_mean

    @property
    def step_mean(self) -> bool:
        """Whether the loss is the mean over a step's tokens whatever `calculate_per_token_loss` says.

        The collator of SkyRL's trainer divides the loss mask by the number of tokens (docs/trainers.md).
        """
        return self.path.step_mean or self.trainer == "skyrl"

    @property
    def trained_by_harness(self) -> bool:
        """Whether the harness trains, not upstream's own script."""
        return self.trainer == HARNESS

    @property
    def effective_recompute(self) -> str:
        """What backward recomputes: the axis, unless arguments of upstream's trainer say otherwise."""
        return self.args.effective_recompute(self.recompute)

    @property
    def start_step(self) -> int:
        """The first step of this part of the cell."""
        return self.train.save_step if self.saved_in else 0

    @property
    def steps(self) -> range:
        return range(self.start_step, self.train.steps)

    @cached_property
    def evaluations(self) -> dict[int, int]:
        """Number of each evaluation of this part of the cell -> number of steps finished before it."""
        return {number: after for number, after in enumerate(self.evaluated) if after > self.start_step}

    @property
    def evaluated(self) -> tuple[int, ...]:
        """Numbers of finished steps after which the cell evaluates; upstream's mock data also has a set of tests."""
        after = self.train.evaluated
        return (*after, *after[-1:]) if self.documents.mock else after

    @property
    def resumed(self) -> CellConfig:
        """The part of the cell that continues from its checkpoint. ValueError if its ranks cannot be split so."""
        without: dict[str, Any] = {"resume": "", "canaries": (), "fingerprints": False, "timing": NOT_TIMED}
        return replace(self, layout=resumed_layout(self.resume, self.layout), saved_in=self.layout, **without)

    @property
    def stored(self) -> tuple[int, ...]:
        """Finished steps after which the state of a checkpoint is recorded; the last too, if layouts are the same."""
        if not self.resume and not self.saved_in:
            return ()
        same = self._other_layout == self.layout
        return (self.train.save_step, self.train.steps) if same else (self.train.save_step,)

    @property
    def path(self) -> DataPath:
        return DATA_PATHS[self.data_path]

    @cached_property
    def style(self) -> PackingStyle:
        style = self.path.style(self.row_layout, self.train.seq_length, self.options)
        style = self.path.with_images(style) if self.model.vision else style
        if not self.trained_by_harness:
            style = self.path.trained(style, self.row_layout)
        if not self.train.eod_mask_loss:  # the last token of a document is the first of the next
            style = replace(style, last_token_slots=0)
        return packed_of_documents(style) if self.packed_later else style

    def documents_of(self, step: int) -> list[Document]:
        return documents_of_step(
            self.documents,
            seed=self.train.seed,
            step=step,
            count=self.train.global_batch,
            seq_length=self.train.seq_length,
            evaluation=None if step < self.train.steps else step - self.train.steps,
            tests=len(self.evaluated) - 1,
        )

    def micro_batches(self, step: int) -> list[list[MicroBatch]]:
        """Return micro-batches of one step, indexed [dp][i]."""
        return self.packed(self.documents_of(step))

    def rows(self, step: int) -> list[Row]:
        """Return the rows of one step as upstream's samplers deal them: of each replica in turn, a micro-batch or one
        row.
        """
        return self.style.packer.as_dealt(self.micro_batches(step))

    def samples(self, step: int) -> list[Row]:
        """Return what the data set of upstream's trainer returns for one step, in the order in which its samplers deal
        it.
        """
        if self.packed_later:
            return [row_of(document, self.style) for document in self.documents_of(step)]
        return undealt(self.rows(step), self.layout.dp) if self.path.scheduled else self.rows(step)

    @property
    def packed_later(self) -> bool:
        """Whether upstream's trainer reads documents one by one, and packs them while it trains."""
        return (self.path.scheduled == "documents" or self.documents.mock) and not self.trained_by_harness

    def packed(self, documents: Sequence[Document]) -> list[list[MicroBatch]]:
        """Return micro-batches of other documents in this cell, indexed [dp][i]. ValueError if there are too few of
        them.
        """
        return plan_step(
            dealt(documents, self.layout.dp) if self.packed_later else documents,
            self.style,
            self.layout,
            seq_length=self.train.seq_length,
            micro_batch_size=self.micro_batch_size,
            rows_of=self.row_layout,
        )
