"""Sizes of public models, by the names that configurations give them: facts of their config.json on Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PublicModel:
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int | None = None  # where it is not hidden / heads
    fields: Mapping[str, Any] = field(default_factory=dict)  # others, by Megatron's names


def _model(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, **fields: Any) -> PublicModel:
    head_size = fields.pop("kv_channels", None)
    return PublicModel(
        layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=kv_heads, head_size=head_size, fields=fields
    )


def _dense_first(dense: int, layers: int) -> dict[str, str]:
    """Return the layers with experts where the first ones are dense: first_k_dense_replace of config.json."""
    return {"moe_layer_freq": f"[0]*{dense}+[1]*{layers - dense}"}


_TIED = {"untie_embeddings_and_output_weights": False}
_BIAS = {"add_qkv_bias": True}
_QWEN3 = {"kv_channels": 128, "qk_layernorm": True}
_QWEN3_MOE = {**_QWEN3, "num_experts": 128, "moe_router_topk": 8}
_LATENT = {"kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
_DEEPSEEK = {
    **_LATENT,
    "q_lora_rank": 1536,
    "moe_router_topk": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
}
_MOONLIGHT = {
    **_DEEPSEEK,
    "q_lora_rank": None,
    "num_experts": 64,
    "moe_router_topk": 6,
    "moe_ffn_hidden_size": 1408,
    "moe_shared_expert_intermediate_size": 2816,
}
# A regular expression over the last part of the name, without the case -> the model. The first one that fits counts.
_MODELS: dict[str, PublicModel] = {
    r"llama-?3\.2-1b": _model(16, 2048, 8192, 32, 8, **_TIED),
    r"llama-?3\.2-3b": _model(28, 3072, 8192, 24, 8, **_TIED),
    r"llama-?3(\.\d)?-8b": _model(32, 4096, 14336, 32, 8),
    r"llama-?3(\.\d)?-70b": _model(80, 8192, 28672, 64, 8),
    r"llama-?3\.1-405b": _model(126, 16384, 53248, 128, 8),
    r"qwen2(\.5)?-(math-|coder-)?0\.5b": _model(24, 896, 4864, 14, 2, **_TIED, **_BIAS),
    r"qwen2(\.5)?-(math-|coder-)?1\.5b": _model(28, 1536, 8960, 12, 2, **_TIED, **_BIAS),
    r"qwen2\.5-(coder-)?3b": _model(36, 2048, 11008, 16, 2, **_TIED, **_BIAS),
    r"(qwen2(\.5)?-(math-|coder-)?7b|deepseek-r1-distill-qwen-7b)": _model(28, 3584, 18944, 28, 4, **_BIAS),
    r"(qwen2\.5-(coder-)?14b|deepseek-r1-distill-qwen-14b)": _model(48, 5120, 13824, 40, 8, **_BIAS),
    r"(qwen2\.5-(coder-)?32b|deepseek-r1-distill-qwen-32b)": _model(64, 5120, 27648, 40, 8, **_BIAS),
    r"qwen2(\.5)?-(math-)?72b": _model(80, 8192, 29568, 64, 8, **_BIAS),
    r"qwen3-0\.6b": _model(28, 1024, 3072, 16, 8, **_TIED, **_QWEN3),
    r"qwen3-1\.7b": _model(28, 2048, 6144, 16, 8, **_TIED, **_QWEN3),
    r"qwen3-4b": _model(36, 2560, 9728, 32, 8, **_TIED, **_QWEN3),
    r"qwen3-8b": _model(36, 4096, 12288, 32, 8, **_QWEN3),
    r"qwen3-14b": _model(40, 5120, 17408, 40, 8, **_QWEN3),
    r"qwen3-32b": _model(64, 5120, 25600, 64, 8, **_QWEN3),
    r"qwen3-30b-a3b": _model(48, 2048, 6144, 32, 4, **_QWEN3_MOE, moe_ffn_hidden_size=768),
    r"qwen3-235b-a22b": _model(94, 4096, 12288, 64, 4, **_QWEN3_MOE, moe_ffn_hidden_size=1536),
    r"mixtral-8x7b": _model(32, 4096, 14336, 32, 8, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=14336),
    r"mixtral-8x22b": _model(56, 6144, 16384, 48, 8, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=16384),
    r"deepseek-(v3|r1)(?!.*distill)": _model(
        61, 7168, 18432, 128, 128, **_DEEPSEEK, **_dense_first(3, 61), num_experts=256
    ),
    r"kimi-k2": _model(61, 7168, 18432, 64, 64, **_DEEPSEEK, **_dense_first(1, 61), num_experts=384),
    r"moonlight-?16b": _model(27, 2048, 11264, 16, 16, **_MOONLIGHT, **_dense_first(1, 27)),
}
_WITH_IMAGES = re.compile(r"[-_.]vl\b|omni", re.IGNORECASE)


def public_model(name: str) -> PublicModel | None:
    """Return the model that a name or path ends with, such as `Qwen/Qwen3-30B-A3B-Base`; None if it is not known.

    A model with images is not known by its language model.
    """
    last = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    if _WITH_IMAGES.search(last):
        return None
    return next((model for pattern, model in _MODELS.items() if re.match(pattern, last)), None)
