"""Rules of attention: kernels, windows, latent attention."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.features.attention.limits import KERNELS, LIMITS, Limit
from harness.matrix.rules.rule import Rule, not_divisible


def rope_fusion_of_plain_rope(config: CellConfig) -> str | None:
    mla = config.model.mla
    if not config.model.rope_fusion or mla is None or mla.rope == "yarn":
        return None
    return f"model.rope_fusion is true and model.mla.rope is {mla.rope}: fused rotary positions of MLA need rope yarn"


def latent_attention_is_its_own(config: CellConfig) -> str | None:
    model = config.model
    if model.mla is None:
        return None
    found = [name for name in ("head_size", "softmax_scale", "qk_layernorm") if getattr(model, name)]
    return f"model.{found[0]} is {getattr(model, found[0])} and model.mla has its own" if found else None


def skip_needs_window(config: CellConfig) -> str | None:
    if config.model.window_skip is None or config.model.window is not None:
        return None
    return f"model.window_skip is {config.model.window_skip} without a window"


def latent_ranks_by_tp(config: CellConfig) -> str | None:
    mla, tp = config.model.mla, config.layout.tp
    if mla is None:
        return None
    # One projection gives both, and its output is split over tp.
    down = mla.kv_lora_rank + mla.qk_pos_emb_head_dim
    reasons = [not_divisible("model.mla.kv_lora_rank + qk_pos_emb_head_dim =", down, f"tp {tp}", tp)]
    if mla.q_lora_rank is not None:
        reasons.insert(0, not_divisible("model.mla.q_lora_rank", mla.q_lora_rank, f"tp {tp}", tp))
    return next((reason for reason in reasons if reason), None)


def limit_of_kernels(limit: Limit) -> Rule:
    """A limit of attention kernels as a rule."""
    return Rule(limit.id, limit.source, lambda config: limit.predicate(config) if config.attention in KERNELS else None)


ATTENTION_RULES: tuple[Rule, ...] = (
    Rule(
        "mla.rope-fusion",
        "Megatron-LM MLATransformerConfig: apply_rope_fusion for MLA only works with YARN RoPE",
        rope_fusion_of_plain_rope,
    ),
    Rule(
        "mla.own-attention",
        "harness: a key without effect; Megatron-LM MultiLatentAttention has its own head sizes, softmax scale, and "
        "norms of compressed queries and keys",
        latent_attention_is_its_own,
    ),
    Rule(
        "attention.skip-needs-window",
        "harness: a key without effect; Megatron-LM is_layer_window_attention ignores it without a window",
        skip_needs_window,
    ),
    Rule(
        "mla.ranks-by-tp",
        "Megatron-LM get_gpt_layer_local_spec: down projections of MLASelfAttention are column parallel; Transformer "
        "Engine's are whole",
        latent_ranks_by_tp,
    ),
    *(limit_of_kernels(limit) for limit in LIMITS),
)
