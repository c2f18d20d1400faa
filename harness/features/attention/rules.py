"""Rules of attention: kernels, windows, latent attention."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.cell.model import LEARNED, OF_ROTARY, ModelConfig
from harness.core.setting import keys_of
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
    names = ("head_size", "position_embedding", *OF_ROTARY, "qkv_bias", "softmax_scale", "qk_layernorm")
    found = [name for name in names if getattr(model, name) != keys_of(ModelConfig)[name].default]
    return f"model.{found[0]} is {getattr(model, found[0])} and model.mla has its own" if found else None


def predicting_layers_have_positions(config: CellConfig) -> str | None:
    """A prediction layer has a number by which no_rope_freq cannot be read, and gets no learned positions."""
    model = config.model
    if model.mtp is None:
        return None
    if model.position_embedding == LEARNED:
        return f"model.position_embedding is {LEARNED} with model.mtp"
    return f"model.no_rope_freq is {model.no_rope_freq} with model.mtp" if model.no_rope_freq else None


def position_ids_reach_the_model(config: CellConfig) -> str | None:
    path = config.path
    without = path.without if config.trained_by_harness else path.trained_without
    if config.model.position_embedding != LEARNED or "position_ids" not in without:
        return None
    return f"model.position_embedding is {LEARNED}, and packing {path.name} gives the model no position ids"


def factor_needs_scaling(config: CellConfig) -> str | None:
    factor = config.model.rope_scaling_factor
    if config.model.rope_scaling or factor == keys_of(ModelConfig)["rope_scaling_factor"].default:
        return None
    return f"model.rope_scaling_factor is {factor:g} without rope_scaling"


def hybrid_models_scale_no_rope(config: CellConfig) -> str | None:
    if not config.model.hybrid or not config.model.rope_scaling:
        return None
    return "model.rope_scaling is true with model.pattern"


def biases_of_experts(config: CellConfig) -> str | None:
    if config.model.moe is None or not config.model.biases:
        return None
    return "model.biases is true with model.moe"


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
        "positions.prediction",
        "Megatron-LM validate_args: no learned positions with MTP; Attention.forward: no_rope_freq[layer_number - 1]",
        predicting_layers_have_positions,
    ),
    Rule(
        "positions.ids",
        "verl and NeMo-RL and SkyRL: packed rows for rotary positions, which are counted from cu_seqlens",
        position_ids_reach_the_model,
    ),
    Rule(
        "positions.factor",
        "harness: a key without effect; Megatron-LM RotaryEmbedding reads it with rope_scaling alone",
        factor_needs_scaling,
    ),
    Rule(
        "positions.hybrid",
        "Megatron-LM HybridModel.__init__: no rope_scaling, unlike GPTModel",
        hybrid_models_scale_no_rope,
    ),
    Rule(
        "model.biases-of-experts",
        "harness: its reference has no biases of experts and routers, which Megatron-LM adds",
        biases_of_experts,
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
