"""Rules of packing under context, sequence and tensor parallelism, and the limits of each data path."""

from __future__ import annotations

from harness.core.data_paths.descriptor import ZIGZAG, DataPath, Limit
from harness.core.data_paths.table import DATA_PATHS, names
from harness.core.packing.options import align_up
from harness.core.text import counted
from harness.plan.rules.rule import Rule, Shape, not_divisible


def seq_length_by_cp(config: Shape) -> str | None:
    cp = config.layout.cp
    return _seq_length(config, f"2 * cp = 2 * {cp} = {2 * cp}", 2 * cp) if cp > 1 else None


def seq_length_by_sp(config: Shape) -> str | None:
    """Rows of fixed length are split over cp, then over tp; rows of variable length are aligned for that already."""
    tp, cp = config.layout.tp, config.layout.cp
    style = config.style
    if not config.layout.sp or (style.row_length is None and not style.tail_segment):
        return None
    return _seq_length(config, f"tp {tp} x cp {cp} = {tp * cp} (sp is on)", tp * cp)


def row_holds_alignment(config: Shape) -> str | None:
    """A document truncated to seq_length and then padded must still fit in a row."""
    if not config.style.packed:
        return None
    multiple = config.style.document_multiple
    reason = _seq_length(config, f"{_multiple(config)} = {multiple}", multiple)
    length = config.train.seq_length
    if reason is None:
        return None
    return (
        f"{reason}; a document of {length} tokens is padded to {align_up(length, multiple)} and does not fit in its row"
    )


def documents_aligned(config: Shape) -> str | None:
    """Padded documents must split evenly over 2 * cp; with sp, where a row may end with a document, also over cp * tp.

    Only pad_seq_to_mult can violate this: the multiples that data paths choose are aligned.
    """
    layout, multiple = config.layout, config.options.pad_seq_to_mult
    if multiple is None or not config.style.packed:
        return None
    alignment = config.path.alignment if "pad_seq_to_mult" in config.path.options else ZIGZAG
    needed, why = alignment.multiple(layout), alignment.text(layout)
    if multiple % needed == 0:
        return None
    base = f"documents are padded to a multiple of pad_seq_to_mult = {multiple}, but the layout needs {why} = {needed}"
    for document in config.documents_of(0):
        padded = align_up(document.length, multiple)
        if padded % needed:
            example = f"a document of {counted(document.length, 'token')} takes {padded}"
            return f"{base}: {example}, and {padded} % {needed} = {padded % needed}"
    return f"{base}: {multiple} % {needed} = {multiple % needed}"


def _multiple(config: Shape) -> str:
    """The origin of the multiple to which a cell's documents are padded."""
    if config.options.pad_seq_to_mult is not None:
        return "pad_seq_to_mult"
    return f"the alignment {config.path.alignment.text(config.layout)}"


def _seq_length(config: Shape, by: str, divisor: int) -> str | None:
    length = config.train.seq_length
    return not_divisible("train.seq_length", length, by, divisor) if length % divisor else None


def packing_has_switch(config: Shape) -> str | None:
    if config.options.remove_microbatch_padding or "remove_microbatch_padding" in config.path.options:
        return None
    return (
        f"remove_microbatch_padding is false, and packing is {config.data_path}: only "
        f"{_with_option('remove_microbatch_padding')} has this switch"
    )


def loss_has_switch(config: Shape) -> str | None:
    if not config.options.fuse_loss or "fuse_loss" in config.path.options:
        return None
    return f"fuse_loss is set, and packing is {config.data_path}: only {_with_option('fuse_loss')} has this switch"


def forbidden_with_rules(config: Shape) -> str | None:
    cases = config.path.validates
    if config.forbidden in cases or not (cases or config.forbidden):
        return None
    if cases:
        return f"packing {config.data_path} needs the axis `forbidden`: the combination that upstream must refuse"
    owner = names(path for path in DATA_PATHS.values() if config.forbidden in path.validates)
    return f"forbidden {config.forbidden} is a case of packing {owner}, and packing is {config.data_path}"


def pad_cu_seqlens_needs_max_length(config: Shape) -> str | None:
    if not config.options.pad_cu_seqlens or config.options.pad_to_max_length:
        return None
    return "pad_cu_seqlens is true and pad_to_max_length is false: a fixed cu_seqlens needs rows of fixed length"


def pad_cu_seqlens_needs_metadata(config: Shape) -> str | None:
    if not config.options.pad_cu_seqlens or config.options.metadata:
        return None
    return "pad_cu_seqlens is true and metadata is false: the number of entries comes from the pack metadata"


def pad_cu_seqlens_has_path(config: Shape) -> str | None:
    if not config.options.pad_cu_seqlens or "pad_cu_seqlens" in config.path.options:
        return None
    return f"packing {config.data_path} does not pad cu_seqlens; only {_with_option('pad_cu_seqlens')} does"


def _with_option(name: str) -> str:
    """Names of the data paths that have the option."""
    return names(path for path in DATA_PATHS.values() if name in path.options)


def limit_of(path: DataPath, limit: Limit) -> Rule[Shape]:
    """A limit of a data path as a rule."""
    return Rule(
        limit.rule, limit.source, lambda config: limit.reason(config) if config.path is path else None, path=path.name
    )


RULES: tuple[Rule[Shape], ...] = (
    Rule("cp.seq-length", "Megatron-LM validate_args; Megatron-Bridge ConfigContainer.validate", seq_length_by_cp),
    Rule("sp.seq-length", "Megatron-LM sequence parallel scatter of each cp rank's slab", seq_length_by_sp),
    Rule("packing.row-holds-alignment", "harness: a row has at most seq_length slots", row_holds_alignment),
    Rule(
        "packing.documents-aligned",
        "Megatron-LM SFTDataset (2 * CP); Megatron-Bridge pad_seq_to_mult: lcm(2 * CP, CP * TP with SP)",
        documents_aligned,
    ),
    *(limit_of(path, limit) for path in DATA_PATHS.values() for limit in path.limits),
    Rule("packing.skyrl-switch", "harness: remove_microbatch_padding is SkyRL's", packing_has_switch),
    Rule("packing.nemo-rl-switch", "harness: fuse_loss is NeMo-RL's", loss_has_switch),
    Rule("rules.case", "harness: packing rules needs a case, other packing none", forbidden_with_rules),
    Rule(
        "packing.pad-cu-seqlens-max-length",
        "Megatron-Bridge ConfigContainer.validate: pad_cu_seqlens requires pad_to_max_length",
        pad_cu_seqlens_needs_max_length,
    ),
    Rule(
        "packing.pad-cu-seqlens-metadata",
        "Megatron-Bridge data/packing/gpt_sft.py: pack metadata asserted when the dataset is built",
        pad_cu_seqlens_needs_metadata,
    ),
    Rule("packing.pad-cu-seqlens-path", "harness: Megatron-Bridge offline packing only", pad_cu_seqlens_has_path),
)
