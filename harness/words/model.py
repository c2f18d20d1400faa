"""The model under the probe: a small GPT, dense or with experts, extra prediction heads or latent attention."""

from __future__ import annotations

from dataclasses import dataclass

AUX_LOSSES = ("none", "aux_loss", "seq_aux_loss")
DISPATCHERS = ("alltoall", "allgather")
MLA_ROPES = ("rope", "yarn")


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Experts in place of every feed-forward block (megatron.core.transformer.moe); none is dropped."""

    experts: int = 4
    topk: int = 2
    ffn: int = 64  # hidden size of one expert
    aux_loss: str = "none"  # moe_router_load_balancing_type
    aux_loss_coeff: float = 0.01
    dispatcher: str = "alltoall"
    padding_mask: bool = False  # routers are told which slots are padding, and leave them out of their statistics

    @property
    def balanced(self) -> bool:
        """Whether an auxiliary loss acts on the router."""
        return self.aux_loss != "none" and self.aux_loss_coeff > 0

    def __str__(self) -> str:
        """As part of a cell's name: moe4x2, moe4x2-seq_aux_loss, moe4x2-allgather."""
        name = f"moe{self.experts}x{self.topk}"
        name += f"-{self.aux_loss}" if self.balanced else ""
        name += "-masked" if self.padding_mask else ""
        return name if self.dispatcher == "alltoall" else f"{name}-{self.dispatcher}"


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """Multi-token prediction: further layers after the last, each predicting one token further ahead."""

    layers: int = 1
    loss_factor: float = 0.1

    def __str__(self) -> str:
        return f"mtp{self.layers}"


@dataclass(frozen=True, kw_only=True)
class MlaConfig:
    """Multi-latent attention: queries, keys and values come up from low-rank projections. Sizes per head."""

    q_lora_rank: int | None = 16  # None: queries are projected directly
    kv_lora_rank: int = 16
    qk_head_dim: int = 8
    qk_pos_emb_head_dim: int = 4  # the part that rotary positions turn, added to qk_head_dim
    v_head_dim: int = 8
    rope: str = "rope"

    def __str__(self) -> str:
        return "mla" if self.rope == "rope" else f"mla-{self.rope}"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A GPT with RMSNorm, SwiGLU and rotary positions. Sizes in units of one element."""

    layers: int = 4
    hidden: int = 64
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 128
    vocab: int = 128
    rope_base: int = 10000
    tied: bool = False  # embedding and output layer share weights
    rope_fusion: bool = False  # apply_rope_fusion: Transformer Engine's rotary kernels
    cuda_graphs: bool = False  # cuda_graph_impl; no cell is allowed it: harness/plan/rules/model.py
    moe: MoeConfig | None = None
    mtp: MtpConfig | None = None
    mla: MlaConfig | None = None

    @property
    def balanced(self) -> bool:
        """Whether an auxiliary loss acts on routers."""
        return self.moe is not None and self.moe.balanced

    @property
    def padding_mask(self) -> bool:
        """Whether routers are told which slots are padding."""
        return self.moe is not None and self.moe.padding_mask
