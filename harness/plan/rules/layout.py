"""Rules of the parallel layout: divisibility that does not depend on packing."""

from __future__ import annotations

from functools import lru_cache

from harness.core.packing.arithmetic import pack, row_multiple
from harness.core.packing.documents import MIXES, DocumentsConfig, documents_of_step
from harness.core.packing.options import PackingStyle
from harness.plan.rules.rule import Rule, Shape, not_divisible

_PROBE = "harness: the probe shards whole heads, rows and layers evenly"


def layers_by_pp(config: Shape) -> str | None:
    layout = config.layout
    stages = layout.pp * layout.vpp
    if not isinstance(config.model.spread, int):
        return None  # hybrid.cuts
    return not_divisible("model.layers", config.model.layers, f"pp {layout.pp} x vpp {layout.vpp} = {stages}", stages)


def heads_by_tp(config: Shape) -> str | None:
    return _by_tp(config, "heads", config.model.heads)


def kv_heads_by_tp(config: Shape) -> str | None:
    return _by_tp(config, "kv_heads", config.model.kv_heads)


def ffn_by_tp(config: Shape) -> str | None:
    return _by_tp(config, "ffn", config.model.ffn)


def vocab_by_tp(config: Shape) -> str | None:
    return _by_tp(config, "vocab", config.model.vocab)


def _by_tp(config: Shape, key: str, value: int) -> str | None:
    tp = config.layout.tp
    return not_divisible(f"model.{key}", value, f"tp {tp}", tp) if value % tp else None


def sp_needs_tp(config: Shape) -> str | None:
    if not config.layout.sp or config.layout.tp > 1:
        return None
    return "sp splits the sequence over the tp ranks, and tp is 1; set tp above 1 or sp: false"


def vpp_needs_pp(config: Shape) -> str | None:
    layout = config.layout
    if layout.vpp == 1 or layout.pp > 1:
        return None
    return f"vpp {layout.vpp} interleaves model chunks over the pipeline stages, and pp is 1"


def documents_by_replicas(config: Shape) -> str | None:
    """Unpacked rows are documents, so the documents of a step must split evenly over replicas.

    So must rollouts that replicas exchange before they are packed.
    """
    if config.style.packed and not config.style.even_shares:
        return None
    documents = config.train.global_batch
    parts = config.layout.dp if config.style.packed else row_multiple(config.layout, config.micro_batch_size)
    return not_divisible("train.global_batch", documents, _parts(config, parts), parts) if documents % parts else None


def rows_by_replicas(config: Shape) -> str | None:
    """Packed rows must split evenly over replicas too; rows may be split for that until each has one document."""
    if not config.style.packed:
        return None
    train = config.train
    parts = row_multiple(config.layout, config.micro_batch_size)
    if train.global_batch % parts == 0 and config.style.splits and not config.style.split_last:
        return None  # one document per row always divides
    for step in range(1 if config.documents.mode in MIXES else train.steps or 1):
        of_step = (config.documents, train.seed, step, train.global_batch, train.seq_length, config.style)
        rows = _row_count(*of_step)
        wanted = -(-rows // parts) * parts
        if not config.style.splits and rows % parts:
            return (
                f"step {step}: {train.global_batch} documents fill {rows} rows of {train.seq_length} tokens, which "
                f"{config.data_path} packs in advance and cannot split into a multiple of {_parts(config, parts)}"
            )
        if wanted > train.global_batch:
            return (
                f"step {step}: {train.global_batch} documents fill {rows} rows of {train.seq_length} tokens; the next "
                f"multiple of {_parts(config, parts)} is {wanted} rows, more than there are documents"
            )
        if config.style.split_last and _row_count(*of_step, parts) == 0:
            return (
                f"step {step}: {train.global_batch} documents fill {rows} rows of {train.seq_length} tokens, of which "
                f"{config.data_path} cannot split enough for a multiple of {_parts(config, parts)}"
            )
    return None


def _parts(config: Shape, parts: int) -> str:
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
    """The number of rows that the documents of a step fill, a multiple of `multiple`; 0 if that cannot be."""
    made = documents_of_step(documents, seed=seed, step=step, count=count, seq_length=seq_length)
    try:
        return len(pack(made, style, seq_length=seq_length, multiple=multiple))
    except ValueError:
        return 0


RULES: tuple[Rule[Shape], ...] = (
    Rule("layout.layers-by-pp", "Megatron-LM TransformerConfig: num_layers % (PP * VPP) == 0", layers_by_pp),
    Rule("layout.heads-by-tp", "Megatron-LM TransformerConfig: num_attention_heads % TP == 0", heads_by_tp),
    Rule(
        "layout.kv-heads-by-tp",
        f"{_PROBE}; Megatron-LM would replicate when TP % num_query_groups == 0",
        kv_heads_by_tp,
    ),
    Rule("layout.ffn-by-tp", "Megatron-LM ColumnParallelLinear: ffn_hidden_size % TP == 0", ffn_by_tp),
    Rule("layout.vocab-by-tp", f"{_PROBE}; Megatron-LM would pad the vocabulary", vocab_by_tp),
    Rule("layout.sp-needs-tp", "Megatron-LM ModelParallelConfig.__post_init__", sp_needs_tp),
    Rule("layout.vpp-needs-pp", "Megatron-LM parallel_state.initialize_model_parallel", vpp_needs_pp),
    Rule(
        "batch.documents-by-replicas",
        "Megatron-LM: global_batch_size % (micro_batch_size * DP) == 0, and micro-batches % PP == 0 when interleaved",
        documents_by_replicas,
    ),
    Rule(
        "batch.rows-by-replicas",
        "Megatron-LM DpBalancedScheduler: rows a multiple of DP (x PP when interleaved), else 'Not enough samples'",
        rows_by_replicas,
    ),
)
