"""Rules of packing under context, sequence and tensor parallelism."""

from __future__ import annotations

from harness.core.packing.styles import align_up
from harness.plan.rules.rule import Rule, Shape, not_divisible


def seq_length_by_cp(config: Shape) -> str | None:
    cp = config.layout.cp
    return _seq_length(config, f"2 * cp = 2 * {cp} = {2 * cp}", 2 * cp) if cp > 1 else None


def seq_length_by_sp(config: Shape) -> str | None:
    """Rows of fixed length are split over cp, then over tp; a row of free length is aligned for that already."""
    tp, cp = config.layout.tp, config.layout.cp
    style = config.style
    if not config.layout.sp or (style.row_length is None and not style.tail_segment):
        return None
    return _seq_length(config, f"tp {tp} x cp {cp} = {tp * cp} (sp is on)", tp * cp)


def row_holds_alignment(config: Shape) -> str | None:
    """A document cut to seq_length and padded must still fit in a row."""
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
    """Every document's padded length must be cut evenly: over 2 * cp, and where rows end with it over cp * tp with sp.

    Only pad_seq_to_mult can break it: what a data path derives by itself is aligned.
    """
    layout, multiple = config.layout, config.options.pad_seq_to_mult
    if multiple is None or not config.style.packed:
        return None
    needed, why = (2 * layout.cp if layout.cp > 1 else 1), f"2 * cp = 2 * {layout.cp}"
    if config.data_path in ("reference", "scheduler") and layout.sp:
        needed, why = layout.alignment, _alignment_text(config)
    if multiple % needed == 0:
        return None
    base = f"documents are padded to a multiple of pad_seq_to_mult = {multiple}, but the layout needs {why} = {needed}"
    for document in config.documents_of(0):
        padded = align_up(document.length, multiple)
        if padded % needed:
            plural = "s" if document.length > 1 else ""
            example = f"a document of {document.length} token{plural} takes {padded}"
            return f"{base}: {example}, and {padded} % {needed} = {padded % needed}"
    return f"{base}: {multiple} % {needed} = {multiple % needed}"


def _alignment_text(config: Shape) -> str:
    tp, cp = config.layout.tp, config.layout.cp
    zigzag = f"2 * cp = {2 * cp}" if cp > 1 else "1"
    return f"lcm({zigzag}, cp * tp = {cp * tp})"


def _multiple(config: Shape) -> str:
    """Where the multiple of a cell's documents comes from."""
    if config.options.pad_seq_to_mult is not None:
        return "pad_seq_to_mult"
    if config.data_path in ("reference", "scheduler", "bridge_in_batch") and config.layout.sp:
        return f"the alignment {_alignment_text(config)}"
    if config.data_path == "skyrl":
        tp, cp = config.layout.tp, config.layout.cp
        return f"the alignment 2 * cp * tp = 2 * {cp} * {tp}" if cp > 1 else f"the alignment tp = {tp}"
    return f"the alignment 2 * cp = 2 * {config.layout.cp}"


def _seq_length(config: Shape, by: str, divisor: int) -> str | None:
    length = config.train.seq_length
    return not_divisible("train.seq_length", length, by, divisor) if length % divisor else None


def skyrl_pads_by_itself(config: Shape) -> str | None:
    options = config.options
    if config.data_path != "skyrl" or (options.pad_seq_to_mult is None and not options.pad_to_max_length):
        return None
    name = "pad_to_max_length" if options.pad_to_max_length else "pad_seq_to_mult"
    return f"{name} is set, and skyrl pads by itself: documents to tp, or to 2 * cp * tp when cp > 1; rows not at all"


def skyrl_packs_for_cp(config: Shape) -> str | None:
    cp = config.layout.cp
    if config.data_path != "skyrl" or cp == 1 or config.options.remove_microbatch_padding:
        return None
    return (
        f"cp {cp} and remove_microbatch_padding is false: SkyRL splits documents over context ranks only where it "
        "packs them; set remove_microbatch_padding or cp 1"
    )


def only_skyrl_may_not_pack(config: Shape) -> str | None:
    if config.options.remove_microbatch_padding or config.data_path == "skyrl":
        return None
    return f"remove_microbatch_padding is false, and packing is {config.data_path}: it is a switch of skyrl alone"


def in_batch_pads_by_itself(config: Shape) -> str | None:
    options = config.options
    if config.data_path != "bridge_in_batch" or (options.pad_seq_to_mult is None and not options.pad_to_max_length):
        return None
    name = "pad_to_max_length" if options.pad_to_max_length else "pad_seq_to_mult"
    return (
        f"{name} is set, and in-batch packing pads by itself: documents to the alignment of the layout, rows not at all"
    )


def in_batch_merges_rows(config: Shape) -> str | None:
    if config.data_path != "bridge_in_batch" or config.micro_batch_size > 1:
        return None
    return "micro_batch_size 1: in-batch packing merges the rows of a micro-batch; set micro_batch_size above 1"


def forbidden_with_rules(config: Shape) -> str | None:
    if (config.data_path == "rules") == bool(config.forbidden):
        return None
    if config.forbidden:
        return f"forbidden {config.forbidden} is a case of packing rules, and packing is {config.data_path}"
    return "packing rules needs the axis `forbidden`: the combination that upstream must refuse"


def rules_alone(config: Shape) -> str | None:
    if config.data_path != "rules" or (config.layout.world_size == 1 and config.micro_batch_size == 1):
        return None
    return "packing rules asks validators on one rank; its layouts are those of the cases: leave the layout at 1"


def offline_rows_alone(config: Shape) -> str | None:
    if config.data_path != "bridge_offline" or config.micro_batch_size == 1:
        return None
    size = config.micro_batch_size
    return f"micro_batch_size {size}: a row that is packed offline is a micro-batch of its own; set micro_batch_size 1"


def offline_rows_split(config: Shape) -> str | None:
    """Rows of free length end at a multiple of 16, GPTSFTDataset's default; every rank needs an equal share."""
    needed, multiple = config.layout.alignment, config.style.tail_multiple
    if config.data_path != "bridge_offline" or config.options.pad_to_max_length or multiple % needed == 0:
        return None
    return (
        f"rows end at a multiple of {multiple} tokens, which the alignment {needed} of the layout does not divide: "
        f"{multiple} % {needed} = {multiple % needed}; set pad_to_max_length"
    )


def pad_cu_seqlens_needs_max_length(config: Shape) -> str | None:
    if not config.options.pad_cu_seqlens or config.options.pad_to_max_length:
        return None
    return "pad_cu_seqlens is true and pad_to_max_length is false: a fixed cu_seqlens needs rows of fixed length"


def pad_cu_seqlens_needs_metadata(config: Shape) -> str | None:
    if not config.options.pad_cu_seqlens or config.options.metadata:
        return None
    return "pad_cu_seqlens is true and metadata is false: the number of entries comes from the pack metadata"


def pad_cu_seqlens_has_path(config: Shape) -> str | None:
    if not config.options.pad_cu_seqlens or config.data_path == "bridge_offline":
        return None
    return f"packing {config.data_path} does not pad cu_seqlens; only bridge_offline does"


def scheduler_makes_micro_batches(config: Shape) -> str | None:
    size = config.micro_batch_size
    if config.data_path != "scheduler" or size == 1:
        return None
    return f"micro_batch_size is {size}, and the scheduler packs all documents of a micro-batch into one row"


def scheduler_leaves_rows_as_they_are(config: Shape) -> str | None:
    if config.data_path != "scheduler" or not config.options.pad_to_max_length:
        return None
    return "pad_to_max_length is true, and the scheduler does not pad rows"


RULES: tuple[Rule[Shape], ...] = (
    Rule("cp.seq-length", "Megatron-LM validate_args; Megatron-Bridge ConfigContainer.validate", seq_length_by_cp),
    Rule("sp.seq-length", "Megatron-LM sequence parallel scatter of each cp rank's slab", seq_length_by_sp),
    Rule("packing.row-holds-alignment", "harness: a row has at most seq_length slots", row_holds_alignment),
    Rule(
        "packing.documents-aligned",
        "Megatron-LM SFTDataset (2 * CP); Megatron-Bridge pad_seq_to_mult: lcm(2 * CP, CP * TP with SP)",
        documents_aligned,
    ),
    Rule("packing.scheduler-micro-batch", "Megatron-LM DpBalancedScheduler", scheduler_makes_micro_batches),
    Rule("packing.scheduler-rows", "Megatron-LM DpBalancedScheduler", scheduler_leaves_rows_as_they_are),
    Rule(
        "packing.skyrl-alignment",
        "SkyRL preprocess_packed_seqs: align_size from TP and CP only",
        skyrl_pads_by_itself,
    ),
    Rule(
        "packing.skyrl-cp",
        "SkyRL validate_megatron_cfg and remove_left_padding: context parallel is only supported with packing",
        skyrl_packs_for_cp,
    ),
    Rule("packing.skyrl-switch", "harness: remove_microbatch_padding is SkyRL's", only_skyrl_may_not_pack),
    Rule(
        "packing.in-batch-alignment",
        "Megatron-Bridge ConfigContainer.validate: in_batch_packing_pad_to_multiple_of from TP, CP and SP",
        in_batch_pads_by_itself,
    ),
    Rule(
        "packing.in-batch-micro-batch",
        "Megatron-Bridge ConfigContainer.validate: in-batch packing requires micro_batch_size above 1",
        in_batch_merges_rows,
    ),
    Rule("rules.case", "harness: a case for packing rules, and for nothing else", forbidden_with_rules),
    Rule("rules.one-rank", "harness: validators are asked on one rank", rules_alone),
    Rule(
        "packing.offline-micro-batch",
        "Megatron-Bridge ConfigContainer.validate: offline packing requires micro_batch_size 1",
        offline_rows_alone,
    ),
    Rule(
        "packing.offline-rows-split",
        "Megatron-Bridge GPTSFTPackedDataset.collate_fn: pad_seq_length_to_mult 16",
        offline_rows_split,
    ),
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
