"""Descriptors: what the launcher, the judge and a rank must know about a data path or a trainer, declared once.

A project's spec.py holds its descriptors; table.py lists them all. The project's node_*.py hold the adapters, which
call upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import PackingStyle


class LimitedCell(Protocol):
    """The part of a cell that a limit reads."""

    @property
    def layout(self) -> Layout: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def options(self) -> PackingOptions: ...
    @property
    def style(self) -> PackingStyle: ...


@dataclass(frozen=True)
class Limit:
    """A combination that the data path cannot run; a rule of the plan. `reason` returns the arithmetic, or None."""

    rule: str  # its id
    source: str
    reason: Callable[[LimitedCell], str | None]


@dataclass(frozen=True)
class Alignment:
    """The multiple, in tokens, that documents are padded to unless `pad_seq_to_mult` sets another."""

    multiple: Callable[[Layout], int]
    text: Callable[[Layout], str]  # its arithmetic, for reasons


@dataclass(frozen=True, kw_only=True)
class DataPath:
    """One value of the axis `packing`."""

    name: str
    # "module:Class" of its adapter, which ranks import; none for what only a trainer reads, and for a plug-in's, which
    # its entry point names.
    adapter: str = ""
    code: str  # the code under test, as a report to its project names it
    functions: str  # upstream functions that the adapter calls; Markdown, for docs/data_paths.md
    releases: str  # releases that have these functions, for the same page
    style: Callable[[Layout, int, PackingOptions], PackingStyle]  # from layout, seq_length and options
    packs: bool = True  # False: every row holds one document, whatever the options
    own: bool = False  # the harness's own code: a control can have the same rows
    alignment: Alignment
    options: tuple[str, ...] = ()  # keys of PackingOptions that change its rows or its metadata
    limits: tuple[Limit, ...] = ()
    trainers: tuple[str, ...] = ()  # values of axis `trainer`, besides the harness's own, that read its data
    only_trained: bool = False  # no other loop than that of these trainers can read it
    with_images: Callable[[PackingStyle], PackingStyle] = lambda style: style  # of documents with images
    trained: Callable[[PackingStyle, Layout], PackingStyle] = lambda style, layout: style  # theirs, from `style`
    chats: bool = False  # Megatron-LM's trainer reads its documents as conversations, which may be masked and truncated
    sft_flag: bool = False  # --sft is on; Megatron-LM then reports of an evaluation the mean of micro-batches' means
    # What these trainers give to --sequence-packing-scheduler: whole rows, or documents one by one; empty: it is off.
    scheduled: Literal["", "rows", "documents"] = ""
    trained_without: tuple[str, ...] = ()  # fields of a batch that these trainers do not give to the model
    without: tuple[
        str, ...
    ] = ()  # fields that the harness's own loop does not give; no labels: upstream computes the loss
    canaries_without_effect: Mapping[str, str] = field(default_factory=dict)  # canary -> why the path cannot vary it
    loss_on_every_context_rank: bool = False  # each returns that of whole rows, so gradients and tokens count cp times
    counted: str = "labels"  # what the loss returns the number of: labels that count, or all tokens; empty: nothing
    returns_padding_mask: bool = False  # its batch has a mask of padding slots, on every stage
    counts_work: bool = False  # records the number of micro-batches and the lengths of a step
    step_mean: bool = False  # its loss is the mean over a step's tokens, also without calculate_per_token_loss
    returns_log_probs: bool = False  # maps log-probabilities of packed slots back to documents
    hands_padding_mask: bool = False  # passes routers a mask of padding slots
    tokens_on_last_stage: bool = False  # passes tokens to the last stage, as multi-token prediction needs
    predicts_by_stages: bool = False  # passes tokens and labels to the stage to which `stages` assigns it
    predicts_on_any_stage: bool = False  # passes tokens and labels to the stage that model.mtp.stage names
    sets_pad_between_seqs: bool = False  # in PackedSeqParams, if the release has that field


# Keys of the model, beyond those of all trainers, that Megatron-LM's arguments and Megatron-Bridge's provider have.
GPT_KEYS = (
    *("position_embedding", "rotary_percent", "rotary_interpolation", "rotary_interleaved", "no_rope_freq"),
    *("normalization", "layernorm_1p", "activation", "biases", "moe", "mtp", "window", "window_skip"),
)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One value of the axis `trainer`: a training loop of upstream's own."""

    name: str
    adapter: str  # "module:Class", which ranks import
    project: str  # its folder in harness/upstreams
    model: tuple[str, ...] = ()  # keys of the model that its adapter passes on, besides those that all do
    # What `args` may set besides the optimizer: arguments of its command line, or fields of its configuration, which
    # have dotted names. The project's node_arguments.py asks it whether it takes them.
    arguments: Literal["", "command line", "fields"] = ""
    global_batch: str = ""  # its setting of the rows of a step, one number for all steps
    saves: bool = False  # saves checkpoints and continues from them
    blends: bool = False  # reads rows from several files


def _zigzag_text(layout: Layout) -> str:
    return f"2 * cp = 2 * {layout.cp}"


def _layout_text(layout: Layout) -> str:
    if not layout.sp:
        return _zigzag_text(layout)
    zigzag = f"2 * cp = {layout.cp_chunks}" if layout.cp > 1 else "1"
    return f"lcm({zigzag}, cp * tp = {layout.cp * layout.tp})"


ZIGZAG = Alignment(lambda layout: layout.cp_chunks, _zigzag_text)  # each document splits into equal chunks
LAYOUT = Alignment(lambda layout: layout.alignment, _layout_text)  # as ZIGZAG, and with sp equally over the tp ranks
NONE = Alignment(lambda layout: 1, lambda layout: "1")


def padding_is_fixed(how: str) -> Callable[[LimitedCell], str | None]:
    """Return the reason of a limit that forbids padding options; `how`: how the data path pads instead."""

    def reason(cell: LimitedCell) -> str | None:
        options = cell.options
        if options.pad_seq_to_mult is None and not options.pad_to_max_length:
            return None
        return f"{'pad_to_max_length' if options.pad_to_max_length else 'pad_seq_to_mult'} is set, and {how}"

    return reason


def one_document_per_row(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """Return rows of seq_length slots; packing options do not apply."""
    return PackingStyle(packed=False, document_multiple=1, row_length=seq_length, real_lengths=False)
