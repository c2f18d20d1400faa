"""Floating-point operations of training on documents of different lengths, and the loads of a timing leg.

A load is the model and layout of the cell, with other documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.cell.timing import NOT_TIMED, step_tokens
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import DEFAULT_OPTIONS
from harness.core.packing.packers import row_multiple
from harness.features.hybrid.pattern import (
    ATTENTION,
    CONVOLUTION,
    EXPANSION,
    GATED_DELTA,
    RECURRENT,
    STATE_SIZE,
    layers_of,
)
from harness.upstreams.builtin.spec import REFERENCE, UNPACKED


def weights_per_token(model: ModelConfig) -> int:
    """Weights that every token is multiplied by: attention, feed-forward block or its experts, output layer.

    Routers are left out, as upstream leaves them out.

    Each depth of multi-token prediction adds a layer, three norms, a projection of 2 * hidden to hidden and the output
    layer.
    """
    depths = model.mtp.layers if model.mtp else 0
    if model.pattern:
        return sum(_weights_of(model, letter) for letter in layers_of(model.pattern)) + model.hidden * model.vocab
    kinds = model.moe.at_layers(model.layers) if model.moe else [False] * model.layers
    dense = replace(model, moe=None)
    # Prediction layers are built as the last layer is.
    fed = sum(_feed_forward_weights(model if has else dense) for has in kinds + kinds[-1:] * depths)
    ends = (1 + depths) * model.hidden * model.vocab + depths * (3 * model.hidden + 2 * model.hidden**2)
    return (model.layers + depths) * _attention_weights(model) + fed + ends


def _attention_weights(model: ModelConfig) -> int:
    hidden, heads, mla = model.hidden, model.heads, model.mla
    if mla is None:
        return 2 * hidden * model.head * (heads + model.kv_heads)
    query = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    rank = mla.q_lora_rank
    queries = hidden * query if rank is None else rank * (hidden + query)
    keys = hidden * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim)
    keys += mla.kv_lora_rank * heads * (mla.qk_head_dim + mla.v_head_dim)
    return queries + keys + heads * mla.v_head_dim * hidden


def _weights_of(model: ModelConfig, letter: str) -> int:
    """Of one layer of a pattern; the products of a recurrent state count as weights, as upstream counts them.

    Megatron-LM's training.py: gdn_layer_flops, mamba_layer_flops (0.19).
    """
    if letter == ATTENTION:
        return _attention_weights(model)
    if letter not in RECURRENT:
        return _feed_forward_weights(model)
    size = model.head
    inner = model.heads * size
    if letter == GATED_DELTA:
        keys = 2 * size * model.kv_heads
        projections = model.hidden * (keys + 3 * inner + 2 * model.heads)
        return projections + CONVOLUTION * (keys + inner) + 4 * model.heads * size**2
    inner *= EXPANSION
    projections = model.hidden * (3 * inner + 2 * model.kv_heads * STATE_SIZE + model.heads)
    return projections + 7 * inner * STATE_SIZE // 2


def _feed_forward_weights(model: ModelConfig) -> int:
    moe, matrices = model.moe, 3 if model.gated else 2
    if moe is None:
        return matrices * model.hidden * model.ffn
    return matrices * model.hidden * (moe.topk * moe.ffn + (moe.shared_ffn or 0))


def _attended_size(model: ModelConfig) -> float:
    """Return the mean of the total query size and the total value size of a token."""
    mla = model.mla
    if mla is None:
        return model.heads * model.head
    return model.heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim + mla.v_head_dim) / 2


def train_flops(model: ModelConfig, lengths: Iterable[int]) -> float:
    """Floating-point operations of forward and backward over documents of these real lengths, padding not counted.

    So two documents of L/2 cost less than one of L.
    """
    lengths = list(lengths)
    return flops_of(model, sum(lengths), sum(length**2 for length in lengths))


def flops_of(model: ModelConfig, tokens: int, squares: int) -> float:
    """Return the same from the sum of lengths and that of squared lengths.

    dense      6 x weights x sum(L): 2 per weight and token, times 3 for forward and the two products of backward
    attention  6 x layers x heads x head size x sum(L^2): scores and weighted sum are 4 x L^2 x heads x head size,
               halved because a token attends to earlier ones only (causal), times 3

    The formula is that of num_floating_point_operations in Megatron-LM's megatron/training/training.py, with its sums
    of lengths and of squared lengths.
    """
    layers = len(model.numbers_of(ATTENTION)) + (model.mtp.layers if model.mtp else 0)
    return 6.0 * weights_per_token(model) * tokens + 6.0 * layers * _attended_size(model) * squares


def load_config(config: CellConfig, load: str, documents: int) -> CellConfig | None:
    """Return the configuration whose step 0 a load runs; None if the load is not a pass of the model.

    ValueError if the layout cannot run it.
    """
    if load == "step":
        return slope_config(config, documents)
    if load in ("unpacked", "full"):
        made = unpacked_config(config) if load == "unpacked" else full_config(config)
        made.micro_batches(0)
        return made
    return config if load in ("packed", "turn") else None


def slope_config(config: CellConfig, documents: int) -> CellConfig:
    """Return the cell with packs of `documents` equally long documents, and as few packs as the layout allows."""
    tokens = step_tokens(config.timing, config.layout)
    packs = row_multiple(config.layout, 1)
    return replace(
        config,
        data_path=REFERENCE.name,
        micro_batch_size=1,
        options=DEFAULT_OPTIONS,
        train=replace(config.train, seq_length=tokens, global_batch=documents * packs),
        documents=DocumentsConfig(mode="file", lengths=(tokens // documents,)),
        timing=NOT_TIMED,
    )


def unpacked_config(config: CellConfig) -> CellConfig:
    """Return the cell's own documents, one per row, in the same layout."""
    return replace(config, data_path=UNPACKED.name, options=DEFAULT_OPTIONS, timing=NOT_TIMED)


def full_config(config: CellConfig) -> CellConfig:
    """As many rows as the cell has, each filled by one document: every slot but the last is a real token."""
    rows = sum(len(batch.rows) for replica in config.micro_batches(0) for batch in replica)
    length = config.train.seq_length
    return replace(
        unpacked_config(config),
        micro_batch_size=1,
        train=replace(config.train, global_batch=rows),
        documents=DocumentsConfig(mode="file", lengths=(length,)),
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """The amount of work in one pass, over all replicas."""

    real_tokens: int
    slots: int
    flops: float


def work_of(config: CellConfig) -> Work:
    """Return the work of step 0."""
    batches: Sequence[MicroBatch] = [batch for replica in config.micro_batches(0) for batch in replica]
    return Work(
        real_tokens=sum(batch.real_tokens for batch in batches),
        slots=sum(batch.slots for batch in batches),
        flops=train_flops(config.model, (document.length for document in config.documents_of(0))),
    )
