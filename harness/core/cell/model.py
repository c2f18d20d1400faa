"""The model of a cell: a small GPT, dense or with experts, multi-token prediction or latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.core.cell.axis_values import BUILDERS
from harness.core.cell.layout import Layers
from harness.core.layer_pattern import CUT, checked_pattern, layers_of
from harness.core.peft import PeftConfig
from harness.core.setting import setting
from harness.core.vision import VisionConfig

GLOBAL_AUX = "global_aux_loss"
AUX_LOSSES = ("none", "aux_loss", "seq_aux_loss", GLOBAL_AUX)
DISPATCHERS = ("alltoall", "allgather")
SCORES = ("softmax", "sigmoid")
DROP_POLICIES = ("probs", "position")
MLA_ROPES = ("rope", "yarn")
VANILLA = "vanilla"
SOFTMAXES = (VANILLA, "off-by-one", "learnable")


def _count(default: int | None, doc: str, *, le: int, ge: int = 1, **facts: Any) -> Any:
    return setting(default, doc=doc, ge=ge, le=le, **facts)


def _factor(default: float, doc: str, **facts: Any) -> Any:
    return setting(default, doc=doc, ge=0.0, le=1e6, **facts)


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Experts in place of every feed-forward block; without a capacity no token is dropped."""

    experts: int = _count(4, "Experts per layer.", le=4_096, upstream="num_moe_experts", aliases=("num_experts",))
    topk: int = _count(
        2,
        "Experts per token; 1 with softmax sets moe_router_pre_softmax, as upstream requires.",
        le=4_096,
        upstream="moe_router_topk",
    )
    ffn: int = _count(64, "Hidden size of one expert.", le=2**20, upstream="moe_ffn_hidden_size")
    aux_loss: str = setting(
        "none",
        doc="Auxiliary loss that balances the router: over the micro-batch, per row, or over the micro-batches of all "
        "replicas and those before it in the step.",
        choices=AUX_LOSSES,
        upstream="moe_router_load_balancing_type",
    )
    aux_loss_coeff: float = _factor(
        0.01, "Weight of the auxiliary loss relative to the loss.", upstream="moe_aux_loss_coeff"
    )
    dispatcher: str = setting(
        "alltoall",
        doc="How tokens are sent to their experts.",
        choices=DISPATCHERS,
        upstream="moe_token_dispatcher_type",
    )
    padding_mask: bool = setting(
        False,
        doc="Mask padding slots, so that routers do not count them (only on the harness's own data paths).",
    )
    z_loss_coeff: float = _factor(
        0.0, "Weight of the routers' z-loss relative to the loss; 0: none.", upstream="moe_z_loss_coeff", later=True
    )
    score_function: str = setting(
        SCORES[0],
        doc="How routers turn logits into scores.",
        choices=SCORES,
        upstream="moe_router_score_function",
        later=True,
    )
    expert_bias: bool = setting(
        False,
        doc="A bias of each expert, which changes after every step so that experts get as many tokens; needs sigmoid.",
        upstream="moe_router_enable_expert_bias",
        later=True,
    )
    bias_rate: float = _factor(
        1e-3, "How much such a bias changes in a step.", upstream="moe_router_bias_update_rate", later=True
    )
    shared_ffn: int | None = _count(
        None,
        "FFN hidden size of the shared expert; if omitted, there is none.",
        le=2**20,
        upstream="moe_shared_expert_intermediate_size",
        later=True,
    )
    shared_gate: bool = setting(
        False,
        doc="A gate scales the output of that expert, as in Qwen3-Next.",
        upstream="moe_shared_expert_gate",
        later=True,
    )
    capacity_factor: float | None = setting(
        None,
        doc="Expert capacity factor; tokens over capacity are dropped. If omitted, no limit.",
        ge=0.01,
        le=1e6,
        upstream="moe_expert_capacity_factor",
        later=True,
    )
    drop_policy: str = setting(
        DROP_POLICIES[0],
        doc="Which tokens are beyond the capacity: those with the lowest scores, or the last ones.",
        choices=DROP_POLICIES,
        upstream="moe_token_drop_policy",
        later=True,
    )
    pad_to_capacity: bool = setting(
        False,
        doc="Experts get exactly as many tokens as their capacity.",
        upstream="moe_pad_expert_input_to_capacity",
        later=True,
    )

    @property
    def balanced(self) -> bool:
        """Whether an auxiliary loss acts on the router."""
        return self.aux_loss != "none" and self.aux_loss_coeff > 0

    @property
    def pre_softmax(self) -> bool:
        """Whether routers apply softmax before they choose, as upstream requires for topk 1.

        Softmax over the one chosen expert would be 1, without a gradient.
        """
        return self.topk == 1 and self.score_function == SCORES[0]

    @property
    def by_rows(self) -> bool:
        """Whether gradients depend on which tokens, padding included, share a micro-batch."""
        return self.balanced or self.z_loss_coeff > 0 or self.expert_bias or self.capacity_factor is not None

    @property
    def drops(self) -> bool:
        """Whether an expert may get more tokens than it takes: a rank's tokens, if all of them choose it."""
        return self.capacity_factor is not None and self.capacity_factor * self.topk < self.experts

    def __str__(self) -> str:
        """As part of a cell's name: moe4x2, moe4x2-seq_aux_loss, moe4x2-allgather."""
        name = f"moe{self.experts}x{self.topk}"
        name += f"-{self.aux_loss}" if self.balanced else ""
        name += "-masked" if self.padding_mask else ""
        name += "".join(f"-{part}" for part in self._later())
        return name if self.dispatcher == "alltoall" else f"{name}-{self.dispatcher}"

    def _later(self) -> list[str]:
        """Parts of the name that are no defaults: z0.1, sigmoid, bias, shared32, cap1.5-position-padded."""
        parts = [f"z{self.z_loss_coeff:g}"] if self.z_loss_coeff else []
        parts += [self.score_function] if self.score_function != SCORES[0] else []
        parts += ["bias"] if self.expert_bias else []
        parts += [f"shared{self.shared_ffn}"] if self.shared_ffn else []
        parts += ["gate"] if self.shared_gate else []
        parts += [f"cap{self.capacity_factor:g}"] if self.capacity_factor is not None else []
        parts += [self.drop_policy] if self.drop_policy != DROP_POLICIES[0] else []
        return parts + (["padded"] if self.pad_to_capacity else [])


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """Multi-token prediction: layers after the last one that predict tokens further ahead."""

    layers: int = _count(1, "Number of MTP layers (prediction depth).", le=64, upstream="mtp_num_layers")
    loss_factor: float = setting(
        0.1,
        doc="Weight of their mean loss; with 0 they would have no gradients to compare.",
        gt=0,
        le=1e6,
        upstream="mtp_loss_scaling_factor",
    )
    stage: int | None = _count(None, "Pipeline stage that reads batches for them; null: the last.", ge=0, le=4_096)

    def __str__(self) -> str:
        return f"mtp{self.layers}{'' if self.stage is None else f'-stage{self.stage}'}"


@dataclass(frozen=True, kw_only=True)
class MlaConfig:
    """Multi-latent attention: queries, keys and values are projected up from low rank. Head sizes in elements."""

    q_lora_rank: int | None = _count(
        16,
        "Rank of the query projection; null: queries are projected directly, and nothing is normed.",
        le=2**17,
        upstream="q_lora_rank",
    )
    kv_lora_rank: int = _count(16, "Rank of the key and value projection.", le=2**17, upstream="kv_lora_rank")
    qk_head_dim: int = _count(8, "Head size of queries and keys without positions.", le=2**14, upstream="qk_head_dim")
    qk_pos_emb_head_dim: int = _count(
        4, "Head size of queries and keys with rotary positions; even.", le=2**14, upstream="qk_pos_emb_head_dim"
    )
    v_head_dim: int = _count(8, "Head size of values.", le=2**14, upstream="v_head_dim")
    rope: str = setting("rope", doc="Kind of rotary positions.", choices=MLA_ROPES, upstream="rope_type")

    @property
    def normed(self) -> bool:
        """Whether compressed queries, keys and values are normed. Without q_lora_rank megatron-core 0.19 needs
        Transformer Engine for that, also on the CPU.
        """
        return self.q_lora_rank is not None

    def __str__(self) -> str:
        return "mla" if self.rope == "rope" else f"mla-{self.rope}"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A GPT with RMSNorm, SwiGLU and rotary positions."""

    layers: int = _count(4, "Transformer layers.", le=1_024, upstream="num_layers")
    hidden: int = _count(64, "Hidden size.", le=2**17, upstream="hidden_size")
    heads: int = _count(8, "Attention heads; must divide hidden.", le=4_096, upstream="num_attention_heads")
    kv_heads: int = _count(
        4, "Key/value heads (query groups); must divide heads.", le=4_096, upstream="num_query_groups"
    )
    ffn: int = _count(128, "Hidden size of the feed-forward block.", le=2**20, upstream="ffn_hidden_size")
    vocab: int = _count(128, "Vocabulary size.", ge=8, le=2**24, aliases=("vocab_size", "padded_vocab_size"))
    rope_base: int = _count(10_000, "Base of the rotary positions.", le=10**12, aliases=("rotary_base",))
    tied: bool = setting(
        False,
        doc="Embedding and output layer share their weights.",
        aliases=("share_embeddings_and_output_weights",),
    )
    rope_fusion: bool = setting(
        False,
        doc="Rotary positions by Transformer Engine's fused kernels; a cell on the CPU is rejected.",
        upstream="apply_rope_fusion",
        later=True,
    )
    softmax: str = setting(
        VANILLA,
        doc="Softmax variant: `off-by-one` and `learnable` add an attention sink per head, fixed at 0 or learned.",
        choices=SOFTMAXES,
        upstream="softmax_type",
        later=True,
    )
    window: int | None = _count(
        None,
        "Tokens before its own that a token attends to (`window_size` without later ones); if omitted, all.",
        le=2**20,
        ge=0,
        upstream="window_size",
        later=True,
    )
    window_skip: int | None = _count(
        None,
        "Every N-th layer uses full attention instead of the sliding window.",
        le=1_024,
        upstream="window_attn_skip_freq",
        later=True,
    )
    softmax_scale: float | None = setting(
        None,
        doc="Factor of attention scores; if omitted, one over the root of the head size.",
        gt=0,
        le=1e6,
        upstream="softmax_scale",
        later=True,
    )
    qk_layernorm: bool = setting(
        False,
        doc="Queries and keys of each head are normalised; latent attention always does.",
        upstream="qk_layernorm",
        later=True,
    )
    gathered_logits: bool = setting(
        False,
        doc="The output layer gathers the logits of all tp ranks (`parallel_output=False` of GPTModel).",
        later=True,
    )
    pattern: str = setting(
        "",
        doc="Layers of upstream's HybridModel, [a letter each](models.md#hybrid-models); if omitted, GPTModel.",
        check=checked_pattern,
        aliases=("hybrid_layer_pattern", "hybrid_override_pattern"),
        values='letters, e.g. `"*-*-"`',
        later=True,
    )
    cuda_graphs: bool = setting(
        False,
        doc="Layers run as CUDA graphs; every cell is [rejected](rules.md), with the reason.",
        shrink=False,
        later=True,
    )
    builder: str = setting(
        "", doc="Model of a [plug-in](api.md#plug-ins).", choices=BUILDERS, values="a name", later=True
    )
    moe: MoeConfig | None = setting(None, doc="Experts; if omitted, dense feed-forward blocks.", later=True)
    mtp: MtpConfig | None = setting(None, doc="Multi-token prediction; if omitted, none.", later=True)
    mla: MlaConfig | None = setting(None, doc="Multi-latent attention; if omitted, heads and kv_heads.", later=True)
    peft: PeftConfig | None = setting(
        None, doc="[Adapters](models.md#adapters) of Megatron-Bridge; if omitted, all weights train.", later=True
    )
    vision: VisionConfig | None = setting(
        None, doc="[Images](models.md#vision): Megatron-Bridge's Qwen3-VL; if omitted, text alone.", later=True
    )

    @property
    def hybrid(self) -> bool:
        """Whether upstream's HybridModel is built."""
        return bool(self.pattern)

    @property
    def spread(self) -> Layers:
        """Layers of each model chunk, where the pattern cuts them; else their number, to be split evenly."""
        return tuple(map(len, self.pattern.split(CUT))) if CUT in self.pattern else self.layers

    def numbers_of(self, letters: str) -> list[int]:
        """Numbers, from 1, of the layers that have one of these letters; without a pattern every layer has all."""
        found = layers_of(self.pattern) or letters[0] * self.layers
        return [number for number, letter in enumerate(found, 1) if letter in letters]

    @property
    def balanced(self) -> bool:
        """Whether an auxiliary loss acts on routers."""
        return self.moe is not None and self.moe.balanced

    @property
    def router_losses(self) -> bool:
        """Whether an auxiliary loss or a z-loss acts on routers."""
        return self.moe is not None and (self.moe.balanced or self.moe.z_loss_coeff > 0)

    @property
    def by_rows(self) -> bool:
        """Whether gradients depend on which documents share a micro-batch, whatever the loss."""
        return self.mtp is not None or (self.moe is not None and self.moe.by_rows)

    @property
    def drops(self) -> bool:
        """Whether tokens may be dropped, by which documents act on each other."""
        return self.moe is not None and self.moe.drops

    @property
    def padding_mask(self) -> bool:
        """Whether routers get a mask of padding slots."""
        return self.moe is not None and self.moe.padding_mask
