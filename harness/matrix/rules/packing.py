"""Rules of the parallel layout, of packing under it with the limits of each data path, and of the loss."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.stages import DECODER, PREDICTION, stages_of
from harness.core.packing.arithmetic import PAD
from harness.core.packing.documents import MIXES, DocumentsConfig, documents_of_step
from harness.core.packing.options import DEFAULT_OPTIONS, align_up
from harness.core.packing.packers import PackingStyle, row_multiple
from harness.core.text import counted
from harness.matrix.rules.rule import Rule, not_divisible
from harness.upstreams.descriptor import ZIGZAG, DataPath, Limit
from harness.upstreams.table import DATA_PATHS, names

_EVEN_SHARDS = "harness: the probe shards whole heads, rows and layers evenly"


def layers_by_pp(config: CellConfig) -> str | None:
    layout, layers = config.layout, config.model.layers
    if not isinstance(config.model.spread, int) or layout.stages:
        return None  # hybrid.cuts, layout.stages
    stages = layout.pp * layout.vpp
    by = f"pp {layout.pp} x vpp {layout.vpp} = {stages}"
    if layout.first_stage_layers is not None or layout.last_stage_layers is not None:
        return _layers_between(layout, layers)
    if not (layout.embedding_as_layer or layout.loss_as_layer):
        return not_divisible("model.layers", layers, by, stages)
    counted = " + 1" * (layout.embedding_as_layer + layout.loss_as_layer)
    whole = layers + layout.embedding_as_layer + layout.loss_as_layer
    return not_divisible(f"model.layers {layers}{counted} =", whole, by, stages)


def _layers_between(layout: Layout, layers: int) -> str | None:
    """Return why the layers of the first or last stage, or what they leave for the others, cannot be split."""
    given = {"first_stage_layers": layout.first_stage_layers, "last_stage_layers": layout.last_stage_layers}
    own = {name: size for name, size in given.items() if size is not None}
    if layout.embedding_as_layer or layout.loss_as_layer:
        return f"{' and '.join(own)} with embedding_as_layer or loss_as_layer: set one or the other"
    uneven = (not_divisible(name, size, f"vpp {layout.vpp}", layout.vpp) for name, size in own.items())
    if found := next(filter(None, uneven), None):
        return found
    rest, stages = layers - sum(own.values()), layout.pp - len(own)
    left = f"model.layers {layers}{''.join(f' - {name} {size}' for name, size in own.items())} = {rest}"
    if rest < 0 or stages < 0 or bool(rest) != bool(stages):
        return f"{left} layers for the other {stages} of pp {layout.pp} stages"
    by = f"{stages} other stages x vpp {layout.vpp} = {stages * layout.vpp}"
    return not_divisible(f"{left}, and", rest, by, stages * layout.vpp) if stages else None


def stages_by_pp(config: CellConfig) -> str | None:
    """Return why `stages` says how another model or number of chunks is placed."""
    layout, model = config.layout, config.model
    if layout.stages is None:
        return None
    chunks, wanted = stages_of(layout.stages), layout.pp * layout.vpp
    if layout.split_evenly != replace(layout, stages=None):
        return "stages with first_stage_layers, last_stage_layers, embedding_as_layer or loss_as_layer: set one of them"
    if len(chunks) != wanted:
        return f"stages has {len(chunks)} chunks, and the layout has pp {layout.pp} x vpp {layout.vpp} = {wanted}"
    predicting = model.mtp.layers if model.mtp else 0
    for part, name, count in ((DECODER, "model.layers", model.layers), (PREDICTION, "model.mtp.layers", predicting)):
        if (found := "".join(chunks).count(part)) != count:
            return f"stages has {found} x {part}, and {name} is {count}"
    number = next((number for number, chunk in enumerate(chunks) if PREDICTION in chunk), wanted - 1)
    if number // layout.pp != layout.vpp - 1:
        return f"stages has {PREDICTION} in chunk {number}, and prediction layers are in the last chunk of their stage"
    if number % layout.pp == 0 and layout.pp > 1:
        # Upstream means to refuse it too, but looks at all chunks of the first stage except this one.
        return f"stages has {PREDICTION} on the first stage, whose embedding would not learn from it"
    return None


def heads_by_tp(config: CellConfig) -> str | None:
    return _by_tp(config, "heads", config.model.heads)


def kv_heads_by_tp(config: CellConfig) -> str | None:
    model, tp = config.model, config.layout.tp
    if model.mla or model.kv_heads % tp == 0:
        return None  # latent attention has no such heads
    if tp % model.kv_heads:
        return f"model.kv_heads {model.kv_heads} is neither a multiple nor a divisor of tp {tp}"
    # Each rank has equal rows of the projection to queries, keys and values, whatever heads they belong to.
    rows = (model.heads + 2 * model.kv_heads) * model.head
    named = f"(heads {model.heads} + 2 x kv_heads {model.kv_heads}) x head size {model.head} ="
    return not_divisible(named, rows, f"tp {tp}", tp)


def ffn_by_tp(config: CellConfig) -> str | None:
    return _by_tp(config, "ffn", config.model.ffn)


def vocab_by_tp(config: CellConfig) -> str | None:
    return _by_tp(config, "vocab", config.model.vocab)


def _by_tp(config: CellConfig, key: str, value: int) -> str | None:
    tp = config.layout.tp
    return not_divisible(f"model.{key}", value, f"tp {tp}", tp) if value % tp else None


def sp_needs_tp(config: CellConfig) -> str | None:
    if not config.layout.sp or config.layout.tp > 1:
        return None
    return "sp splits the sequence over the tp ranks, and tp is 1; set tp above 1 or sp: false"


def vpp_needs_pp(config: CellConfig) -> str | None:
    layout = config.layout
    if layout.vpp == 1 or layout.pp > 1:
        return None
    return f"vpp {layout.vpp} interleaves model chunks over the pipeline stages, and pp is 1"


def order_with_experts(config: CellConfig) -> str | None:
    """Return why upstream cannot order the groups of experts alike; it makes them for dense models too, with ep 1."""
    layout = config.layout
    ranks, of_experts = layout.tp * layout.cp, layout.expert_tp * layout.ep
    if not layout.pp_before_dp or layout.pp == 1 or ranks == of_experts:
        return None
    return (
        f"pp_before_dp needs as many replicas of experts as of the other weights: tp {layout.tp} x cp {layout.cp} = "
        f"{ranks}, and expert tp {layout.expert_tp} x ep {layout.ep} = {of_experts}"
    )


def documents_by_replicas(config: CellConfig) -> str | None:
    """Unpacked rows are documents, so the documents of a step must split evenly over replicas.

    So must rollouts that replicas exchange before they are packed.
    """
    if config.style.packed and not config.style.packer.even_shares:
        return None
    documents = config.train.global_batch
    parts = config.layout.dp if config.style.packed else row_multiple(config.layout, config.micro_batch_size)
    return not_divisible("train.global_batch", documents, _parts(config, parts), parts) if documents % parts else None


def rows_by_replicas(config: CellConfig) -> str | None:
    """Packed rows must split evenly over replicas too.

    Rows may be split for that until each has one document.
    """
    if not config.style.packed:
        return None
    train, packer = config.train, config.style.packer
    parts = row_multiple(config.layout, config.micro_batch_size)
    if train.global_batch % parts == 0 and packer.splits_to_single_documents:
        return None  # one document per row always divides
    for step in range(1 if config.documents.mode in MIXES else train.steps or 1):
        of_step = (config.documents, train.seed, step, train.global_batch, train.seq_length, config.style)
        if packer.share is not None:
            try:
                drawn = config.documents_of(step)
                packer.rows(drawn, config.style, seq_length=train.seq_length, multiple=parts)
            except ValueError as error:
                return f"step {step}: {error}"
            continue
        rows = _row_count(*of_step)
        needed_rows = -(-rows // parts) * parts
        if packer.split is None and rows % parts:
            return (
                f"step {step}: {train.global_batch} documents fill {rows} rows of {train.seq_length} tokens, which "
                f"{config.data_path} packs in advance and cannot split into a multiple of {_parts(config, parts)}"
            )
        if needed_rows > train.global_batch:
            return (
                f"step {step}: {train.global_batch} documents fill {rows} rows of {train.seq_length} tokens; the next "
                f"multiple of {_parts(config, parts)} is {needed_rows} rows, more than there are documents"
            )
        if not packer.splits_to_single_documents and _row_count(*of_step, parts) == 0:
            return (
                f"step {step}: {train.global_batch} documents fill {rows} rows of {train.seq_length} tokens, of which "
                f"{config.data_path} cannot split enough for a multiple of {_parts(config, parts)}"
            )
    return None


def _parts(config: CellConfig, parts: int) -> str:
    layout = config.layout
    interleaved = f" x pp {layout.pp} (interleaved)" if layout.vpp > 1 else ""
    return f"dp {layout.dp} x micro_batch_size {config.micro_batch_size}{interleaved} = {parts}"


@lru_cache(maxsize=65536)
def _row_count(
    documents: DocumentsConfig,
    seed: int,
    step: int,
    count: int,
    seq_length: int,
    style: PackingStyle,
    multiple: int = 1,
) -> int:
    """Return the number of rows that the documents of a step fill, a multiple of `multiple`; 0 if that cannot be."""
    drawn = documents_of_step(documents, seed=seed, step=step, count=count, seq_length=seq_length)
    try:
        return len(style.packer.rows(drawn, style, seq_length=seq_length, multiple=multiple))
    except ValueError:
        return 0


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule(
        "layout.layers-by-pp",
        "Megatron-LM TransformerConfig.__post_init__ and get_num_layers_to_build: what stages and chunks share evenly",
        layers_by_pp,
    ),
    Rule(
        "layout.stages",
        "Megatron-LM TransformerConfig.__post_init__ and PipelineParallelLayerLayout.validate_layer_layout",
        stages_by_pp,
    ),
    Rule("layout.heads-by-tp", "Megatron-LM TransformerConfig: num_attention_heads % TP == 0", heads_by_tp),
    Rule(
        "layout.kv-heads-by-tp",
        "Megatron-LM TransformerConfig.__post_init__: num_query_groups a multiple or divisor of TP; "
        "ColumnParallelLinear",
        kv_heads_by_tp,
    ),
    Rule("layout.ffn-by-tp", "Megatron-LM ColumnParallelLinear: ffn_hidden_size % TP == 0", ffn_by_tp),
    Rule("layout.vocab-by-tp", f"{_EVEN_SHARDS}; Megatron-LM would pad the vocabulary", vocab_by_tp),
    Rule(
        "layout.sp-needs-tp",
        "Megatron-LM ModelParallelConfig.__post_init__: no sequence parallelism without tensor parallelism",
        sp_needs_tp,
    ),
    Rule(
        "layout.vpp-needs-pp",
        "Megatron-LM parallel_state.initialize_model_parallel: pipeline size above 1 with the interleaved schedule",
        vpp_needs_pp,
    ),
    Rule(
        "layout.order",
        "Megatron-LM parallel_state.initialize_model_parallel: data parallel size of attention and MoE layers",
        order_with_experts,
    ),
    Rule(
        "batch.documents-by-replicas",
        "Megatron-LM ConstantNumMicroBatchesCalculator: global batch % (micro_batch_size * DP) == 0; interleaved "
        "schedule: micro-batches % PP == 0",
        documents_by_replicas,
    ),
    Rule(
        "batch.rows-by-replicas",
        "harness: splits rows until they are a multiple of DP (x PP when interleaved), as Megatron-LM's "
        "ConstantNumMicroBatchesCalculator and DpBalancedScheduler need",
        rows_by_replicas,
    ),
)


def seq_length_by_cp(config: CellConfig) -> str | None:
    layout = config.layout
    text = f"{ZIGZAG.text(layout)} = {layout.cp_chunks}"
    return _seq_length(config, text, layout.cp_chunks) if layout.cp > 1 else None


def seq_length_by_sp(config: CellConfig) -> str | None:
    """Rows of fixed length are split over cp, then over tp; rows of variable length are aligned for that already."""
    tp, cp = config.layout.tp, config.layout.cp
    if not config.layout.sp or not config.style.ends_at_seq_length:
        return None
    return _seq_length(config, f"tp {tp} x cp {cp} = {tp * cp} (sp is on)", tp * cp)


MOST_TRAINED = 2**20  # tokens of a row


def long_rows_are_fetched(config: CellConfig) -> str | None:
    length = config.train.seq_length
    if length <= MOST_TRAINED or not config.train.steps:
        return None
    return f"train.seq_length {length} is above {MOST_TRAINED}, and train.steps is {config.train.steps}; set steps: 0"


def row_holds_alignment(config: CellConfig) -> str | None:
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


def documents_aligned(config: CellConfig) -> str | None:
    """Padded documents must split evenly over 2 * cp; with sp, where a row may end with a document, also over cp * tp.

    Only pad_seq_to_mult can violate this: the multiples that data paths choose are aligned.
    """
    layout, multiple = config.layout, config.options.pad_seq_to_mult
    if multiple is None or not config.style.packed:
        return None
    alignment = config.path.alignment if "pad_seq_to_mult" in config.path.options else ZIGZAG
    needs, why = alignment.multiple(layout), alignment.text(layout)
    if multiple % needs == 0:
        return None
    base = f"documents are padded to a multiple of pad_seq_to_mult = {multiple}, but the layout needs {why} = {needs}"
    for document in config.documents_of(0):
        padded = align_up(document.length, multiple)
        if padded % needs:
            example = f"a document of {counted(document.length, 'token')} takes {padded}"
            return f"{base}: {example}, and {padded} % {needs} = {padded % needs}"
    return f"{base}: {multiple} % {needs} = {multiple % needs}"


def rows_aligned(config: CellConfig) -> str | None:
    """The padding of a row must split over ranks as documents do."""
    multiple, needs = config.options.pad_row_to_mult, config.path.alignment.multiple(config.layout)
    if multiple is None or not config.style.packed or multiple % needs == 0:
        return None
    why = config.path.alignment.text(config.layout)
    return not_divisible("pad_row_to_mult", multiple, f"the alignment {why} = {needs}", needs)


def rows_padded_once(config: CellConfig) -> str | None:
    options = config.options
    if not (options.pad_to_max_length and options.pad_row_to_mult):
        return None
    return f"pad_to_max_length makes rows of seq_length, and pad_row_to_mult {options.pad_row_to_mult} of a multiple"


# Keys of packing_options that only some data paths act on, besides those that have a rule of their project.
_OF_SOME_PATHS = (
    "pad_row_to_mult",
    "max_tokens_per_microbatch",
    "packing_algorithm",
    "use_sequence_packing",
    "use_dynamic_bsz",
    "balance_batch",
)


def option_has_path(config: CellConfig) -> str | None:
    """Name the first option that would have no effect."""
    for name in _OF_SOME_PATHS:
        value = getattr(config.options, name)
        if value != getattr(DEFAULT_OPTIONS, name) and name not in config.path.options:
            return f"{name} is {value}, and packing is {config.data_path}: only {with_option(name)} can have it"
    return None


def shared_micro_batches(config: CellConfig) -> str | None:
    if config.style.packer.share is None or config.micro_batch_size == 1:
        return None
    return f"micro_batch_size is {config.micro_batch_size}, and a controller makes micro-batches of one row"


def shared_after_resume(config: CellConfig) -> str | None:
    if config.style.packer.share is None or not config.resume:
        return None
    dp = other = config.layout.dp
    with suppress(ValueError):  # ranks that cannot be split so: another rule
        other = config.resumed.layout.dp
    change = f"resume {config.resume} changes dp {dp} to {other}"
    return f"{change}, and a controller makes other micro-batches for other replicas" if dp != other else None


def budget_holds_documents(config: CellConfig) -> str | None:
    budget, length = config.options.max_tokens_per_microbatch, config.train.seq_length
    if budget is None:
        return None
    if config.style.packer.share is None:
        return f"max_tokens_per_microbatch is {budget}, and no controller makes the micro-batches of this cell"
    if budget >= length:
        return None
    return f"max_tokens_per_microbatch {budget} is less than train.seq_length {length}, the length of a document"


def _multiple(config: CellConfig) -> str:
    """Return the origin of the multiple to which a cell's documents are padded."""
    if config.options.pad_seq_to_mult is not None:
        return "pad_seq_to_mult"
    return f"the alignment {config.path.alignment.text(config.layout)}"


def _seq_length(config: CellConfig, by: str, divisor: int) -> str | None:
    length = config.train.seq_length
    return not_divisible("train.seq_length", length, by, divisor) if length % divisor else None


def with_option(name: str) -> str:
    """Return the names of the data paths that have the option."""
    return names(path for path in DATA_PATHS.values() if name in path.options)


def limit_of(path: DataPath, limit: Limit) -> Rule:
    """Return a limit of a data path as a rule."""
    return Rule(limit.rule, limit.source, lambda config: limit.reason(config) if config.path is path else None)


PACKING_RULES: tuple[Rule, ...] = (
    Rule("cp.seq-length", "Megatron-LM validate_args; Megatron-Bridge ConfigContainer.validate", seq_length_by_cp),
    Rule(
        "sp.seq-length",
        "Megatron-LM tensor_parallel.mappings _split_along_first_dim, of each cp rank's slab",
        seq_length_by_sp,
    ),
    Rule(
        "train.seq-length",
        "harness: rows of this length are fetched and compared only; no CPU attends over them",
        long_rows_are_fetched,
    ),
    Rule("packing.row-holds-alignment", "harness: a row has at most seq_length slots", row_holds_alignment),
    Rule(
        "packing.documents-aligned",
        "Megatron-LM SFTDataset (2 * CP); Megatron-Bridge pad_seq_to_mult: lcm(2 * CP, CP * TP with SP); NeMo-RL "
        "_get_pack_sequence_parameters_for_megatron: minimum_pad_factor",
        documents_aligned,
    ),
    Rule(
        "packing.rows-aligned",
        "harness: ranks get equal parts of a row; verl preprocess_thd_engine makes unequal ones of other buckets",
        rows_aligned,
    ),
    Rule("packing.rows-padded-once", "harness: one length of a row", rows_padded_once),
    Rule(
        "packing.shared-micro-batch",
        "NeMo-RL get_microbatch_iterator and SkyRL build_skyrl_config_for_sft: 1; verl prepare_micro_batches: none",
        shared_micro_batches,
    ),
    Rule("packing.shared-resume", "harness: steps are the same before and after a resume", shared_after_resume),
    Rule(
        "packing.budget",
        "SkyRL SFTConfig.resolved_bin_capacity: >= max_length; NeMo-RL and verl: no document longer",
        budget_holds_documents,
    ),
    Rule("packing.option-path", "harness: an option without effect", option_has_path),
    *(limit_of(path, limit) for path in DATA_PATHS.values() for limit in path.limits),
)


_BRIDGE_WITH_CP = "Megatron-Bridge ConfigContainer.validate: fine-tuning with CP > 1"


def per_token_loss_with_cp(config: CellConfig) -> str | None:
    cp = config.layout.cp
    path, means = config.path, not config.options.calculate_per_token_loss
    if cp == 1 or not means or path.step_mean or path.loss_on_every_context_rank:
        return None
    uneven = _uneven(config)
    if uneven is None:
        return None
    step, micro_batch, shares = uneven
    return (
        f"cp {cp} splits each document over {cp} ranks, and calculate_per_token_loss is false: in step {step}, "
        f"micro-batch {micro_batch}, the ranks have {', '.join(map(str, shares))} unmasked tokens, and each divides by "
        "its own count"
    )


def _uneven(config: CellConfig) -> tuple[int, int, list[int]] | None:
    """Return (step, micro-batch, unmasked tokens per cp rank) of the first micro-batch with unequal counts over cp.

    None also where rows cannot be made or split over cp, which other rules reject.
    """
    cp = config.layout.cp
    for step in range(config.train.steps):
        try:
            batches = [batch for replica in config.micro_batches(step) for batch in replica]
            slots = [[batch.local_slots(cp, rank) for rank in range(cp)] for batch in batches]
        except ValueError:
            return None
        for number, (batch, ranks) in enumerate(zip(batches, slots)):
            masks = {placed.document.index: placed.document.loss_mask for placed in batch.placed}
            counts = [owner != PAD and masks[owner][position] for owner, position in batch.slot_owners()]
            shares = [sum(counts[slot] for row in rows for slot in row) for rows in ranks]
            if len(set(shares)) > 1:
                return step, number, shares
    return None


def no_average_with_cp(config: CellConfig) -> str | None:
    cp = config.layout.cp
    if cp == 1 or not config.options.average_in_collective:
        return None
    return (
        f"cp {cp} with average_in_collective would average over cp {cp} x dp {config.layout.dp} ranks with unequal "
        "numbers of tokens"
    )


def no_average_with_per_token_loss(config: CellConfig) -> str | None:
    if not (config.options.average_in_collective and config.options.calculate_per_token_loss):
        return None
    return "calculate_per_token_loss divides by the tokens of all ranks; average_in_collective would divide again"


def smoothing_without_other_heads(config: CellConfig) -> str | None:
    if not config.train.label_smoothing or config.model.mtp is None:
        return None
    return (
        f"train.label_smoothing {config.train.label_smoothing:g} computes the loss outside the model, which then gets "
        "no labels, and multi-token prediction needs them"
    )


def smoothing_needs_own_loss(config: CellConfig) -> str | None:
    """Upstream's loss of these paths has no smoothing, nor has the model whose loss its step with vision takes."""
    if not config.train.label_smoothing or not ("labels" in config.path.without or config.model.vision):
        return None
    whose = f"packing {config.data_path}, whose loss" if "labels" in config.path.without else "model.vision, whose loss"
    return f"train.label_smoothing {config.train.label_smoothing:g} with {whose} upstream computes, without smoothing"


def smoothing_of_shards(config: CellConfig) -> str | None:
    if not config.train.label_smoothing or not config.model.gathered_logits:
        return None
    return "train.label_smoothing takes logits split over tp, and model.gathered_logits gathers them"


LOSS_RULES: tuple[Rule, ...] = (
    Rule(
        "loss.per-token-with-cp",
        "Megatron-LM forward_step_calc_loss: each context rank divides by its own tokens",
        per_token_loss_with_cp,
    ),
    Rule(
        "loss.no-average-with-cp",
        "harness: ranks with unequal numbers of tokens would have equal weights, as Megatron-LM lets them; "
        "Megatron-Bridge ConfigContainer.validate refuses it in fine-tuning",
        no_average_with_cp,
    ),
    Rule(
        "loss.no-average-with-per-token",
        "Megatron-LM DistributedDataParallel: cannot average in collective with per-token loss",
        no_average_with_per_token_loss,
    ),
    Rule(
        "loss.smoothing-mtp",
        "harness: a smoothed loss is computed from logits, so the model gets no labels, which Megatron-LM's "
        "GPTModel._postprocess needs for prediction layers",
        smoothing_without_other_heads,
    ),
    Rule(
        "loss.smoothing-path",
        "verl sft_loss, NeMo-RL NLLLossFn, Megatron-LM train_rl.loss_func, Megatron-Bridge vlm_step: no smoothing",
        smoothing_needs_own_loss,
    ),
    Rule(
        "loss.smoothing-shards",
        "harness: a smoothed loss is computed by Megatron-LM's vocab_parallel_cross_entropy, of logits split over TP",
        smoothing_of_shards,
    ),
)
