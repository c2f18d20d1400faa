"""Rules of attention: kernels, windows, latent attention."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.features.attention.limits import KERNELS, LIMITS, TE_KINDS, Limit
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


def fp8(config: CellConfig) -> str | None:
    """The first unmet requirement of fp8; the last one is a limit of the probe."""
    if config.dtype != "fp8":
        return None
    if config.device == "cpu":
        return "dtype fp8 needs a GPU of compute capability 8.9 or more, and device is cpu"
    if config.attention not in TE_KINDS:
        return f"dtype fp8 needs Transformer Engine, and attention is {config.attention}"
    # fp8 GEMMs need 16 rows on each rank, and context parallelism splits every document over cp of them.
    multiple = 16 * config.layout.cp
    if config.style.packed and config.style.document_multiple % multiple:
        return (
            f"dtype fp8 needs documents padded to a multiple of 16 x cp {config.layout.cp} = {multiple}, and they are "
            f"padded to a multiple of {config.style.document_multiple}"
        )
    return "dtype fp8 needs an fp8 recipe for every linear layer, which this version of the probe does not set"


def limit_of_kernels(limit: Limit) -> Rule:
    """A limit of attention kernels as a rule."""
    return Rule(limit.id, limit.source, lambda config: limit.predicate(config) if config.attention in KERNELS else None)


_FP8_SOURCE = "SkyRL get_packed_seq_align_size, verl: fp8 needs 16 tokens of each rank; harness"


ATTENTION_RULES: tuple[Rule, ...] = (
    Rule(
        "mla.rope-fusion",
        "Megatron-LM MLATransformerConfig: apply_rope_fusion for MLA only works with YARN RoPE",
        rope_fusion_of_plain_rope,
    ),
    Rule(
        "mla.own-attention",
        "Megatron-LM MultiLatentAttention: its own head sizes, softmax scale, and norms of compressed queries and keys",
        latent_attention_is_its_own,
    ),
    Rule("attention.skip-needs-window", "Megatron-LM is_layer_window_attention", skip_needs_window),
    Rule("mla.ranks-by-tp", "Megatron-LM MLASelfAttention: down projections are column parallel", latent_ranks_by_tp),
    *(limit_of_kernels(limit) for limit in LIMITS),
    Rule("dtype.fp8", _FP8_SOURCE, fp8),
)
