"""Names of the tensors that a data path returns: fields of PackedSeqParams, and of a batch."""

from __future__ import annotations

OFFSETS = ("cu_seqlens_q", "cu_seqlens_kv")
PADDED = ("cu_seqlens_q_padded", "cu_seqlens_kv_padded")
LONGEST = ("max_seqlen_q", "max_seqlen_kv")
QKV_FORMAT = "qkv_format"
FIRST_STAGE = ("tokens", "position_ids")  # of a batch: what the first stage reads
LAST_STAGE = ("labels", "loss_mask")
BATCH = FIRST_STAGE + LAST_STAGE
PADDING_MASK = "padding_mask"  # of a batch: True where a slot holds no token; for routers, on every stage
