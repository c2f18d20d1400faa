"""Attention of a cell's model."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.setting import count, setting

MLA_ROPES = ("rope", "yarn")
VANILLA = "vanilla"
SOFTMAXES = (VANILLA, "off-by-one", "learnable")


@dataclass(frozen=True, kw_only=True)
class MlaConfig:
    """Multi-latent attention: queries, keys and values are projected up from low rank. Head sizes in elements."""

    q_lora_rank: int | None = count(
        16,
        "Rank of the query projection; null: queries are projected directly, and nothing is normed.",
        le=2**17,
        upstream="q_lora_rank",
    )
    kv_lora_rank: int = count(16, "Rank of the key and value projection.", le=2**17, upstream="kv_lora_rank")
    qk_head_dim: int = count(8, "Head size of queries and keys without positions.", le=2**14, upstream="qk_head_dim")
    qk_pos_emb_head_dim: int = count(
        4, "Head size of queries and keys with rotary positions; even.", le=2**14, upstream="qk_pos_emb_head_dim"
    )
    v_head_dim: int = count(8, "Head size of values.", le=2**14, upstream="v_head_dim")
    rope: str = setting("rope", doc="Kind of rotary positions.", choices=MLA_ROPES, upstream="rope_type")

    @property
    def normed(self) -> bool:
        """Whether compressed queries, keys and values are normed. Without q_lora_rank megatron-core 0.19 needs
        Transformer Engine for that, also on the CPU.
        """
        return self.q_lora_rank is not None

    def __str__(self) -> str:
        return "mla" if self.rope == "rope" else f"mla-{self.rope}"
