"""Names of the tensors that a data path returns: fields of PackedSeqParams, and of a batch."""

from __future__ import annotations

OFFSETS = ("cu_seqlens_q", "cu_seqlens_kv")
PADDED = ("cu_seqlens_q_padded", "cu_seqlens_kv_padded")
LONGEST = ("max_seqlen_q", "max_seqlen_kv")
QKV_FORMAT = "qkv_format"
ALWAYS_READ = (QKV_FORMAT, *OFFSETS, *PADDED, *LONGEST)  # fields of packed params in every release
FIRST_STAGE = ("tokens", "position_ids")  # of a batch: what the first stage reads
LAST_STAGE = ("labels", "loss_mask")
BATCH = FIRST_STAGE + LAST_STAGE
PADDING_MASK = "padding_mask"  # of a batch: True where a slot holds no token; for routers, on every stage
# What upstream hands to the model, and no check reads: an argument of its forward, or a field of packed params.
NOT_READ = {
    "attention_mask": "with a causal mask type kernels do not read it",
    "total_tokens": "PackedSeqParams makes seq_idx from it",
    "seq_idx": "recurrent layers begin their state by it, and their outputs are compared",
    "tokens_per_sample": "routers split rows by it, and their losses are compared",
    "cp_scatter_cache": "context-parallel ranks keep indices of slots in it, and outputs of slots are compared",
}
