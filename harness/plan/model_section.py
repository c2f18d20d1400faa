"""The `model:` section as pydantic models, and the long names that Megatron users may write instead.

`moe`, `mtp` and `mla` are mappings of their own, also as values of the axes `model.moe`, `model.mtp` and `model.mla`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from harness.plan.problems import KeyPath, Problems
from harness.plan.section import Count, Section, one_of
from harness.words.model import (
    AUX_LOSSES,
    DISPATCHERS,
    MLA_ROPES,
    MlaConfig,
    ModelConfig,
    MoeConfig,
    MtpConfig,
)

_MODEL, _MOE, _MTP, _MLA = ModelConfig(), MoeConfig(), MtpConfig(), MlaConfig()
Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
AuxLoss = Annotated[str, one_of(*AUX_LOSSES), Field(json_schema_extra={"enum": [*AUX_LOSSES]})]
Dispatcher = Annotated[str, one_of(*DISPATCHERS), Field(json_schema_extra={"enum": [*DISPATCHERS]})]
MlaRope = Annotated[str, one_of(*MLA_ROPES), Field(json_schema_extra={"enum": [*MLA_ROPES]})]


class MoeSection(Section):
    """Experts in place of every feed-forward block; no token is dropped."""

    experts: Count = Field(default=_MOE.experts, le=4_096, description="Experts of a layer.")
    topk: Count = Field(default=_MOE.topk, le=4_096, description="Experts that a token goes to.")
    ffn: Count = Field(default=_MOE.ffn, le=2**20, description="Hidden size of one expert.")
    aux_loss: AuxLoss = Field(default=_MOE.aux_loss, description="Auxiliary loss that balances the router.")
    aux_loss_coeff: Factor = Field(default=_MOE.aux_loss_coeff, description="Its weight beside the loss.")
    dispatcher: Dispatcher = Field(default=_MOE.dispatcher, description="How tokens travel to their experts.")
    padding_mask: bool = Field(
        default=_MOE.padding_mask,
        description="Routers leave padding out of their statistics (the harness's own paths).",
    )


class MtpSection(Section):
    """Multi-token prediction: layers after the last that predict tokens further ahead."""

    layers: Count = Field(default=_MTP.layers, le=64, description="Tokens predicted beyond the next one.")
    loss_factor: Factor = Field(default=_MTP.loss_factor, description="Weight of their mean loss beside the loss.")


class MlaSection(Section):
    """Multi-latent attention."""

    q_lora_rank: Count | None = Field(
        default=_MLA.q_lora_rank,
        le=2**17,
        description="Rank of the query projection; null: queries are projected directly.",
    )
    kv_lora_rank: Count = Field(
        default=_MLA.kv_lora_rank, le=2**17, description="Rank of the key and value projection."
    )
    qk_head_dim: Count = Field(
        default=_MLA.qk_head_dim, le=2**14, description="Head size of queries and keys without positions."
    )
    qk_pos_emb_head_dim: Count = Field(
        default=_MLA.qk_pos_emb_head_dim, le=2**14, description="Head size that rotary positions turn; even."
    )
    v_head_dim: Count = Field(default=_MLA.v_head_dim, le=2**14, description="Head size of values.")
    rope: MlaRope = Field(default=_MLA.rope, description="Kind of rotary positions.")


class ModelSection(Section):
    """A GPT with RMSNorm, SwiGLU and rotary positions."""

    layers: Count = Field(default=_MODEL.layers, le=1_024, description="Transformer layers.")
    hidden: Count = Field(default=_MODEL.hidden, le=2**17, description="Hidden size.")
    heads: Count = Field(default=_MODEL.heads, le=4_096, description="Attention heads; must divide hidden.")
    kv_heads: Count = Field(
        default=_MODEL.kv_heads, le=4_096, description="Key/value heads (query groups); must divide heads."
    )
    ffn: Count = Field(default=_MODEL.ffn, le=2**20, description="Hidden size of the feed-forward block.")
    vocab: Annotated[int, Field(ge=8, le=2**24)] = Field(default=_MODEL.vocab, description="Vocabulary size.")
    rope_base: Count = Field(default=_MODEL.rope_base, le=10**12, description="Base of the rotary positions.")
    tied: bool = Field(default=_MODEL.tied, description="Embedding and output layer share their weights.")
    rope_fusion: bool = Field(
        default=_MODEL.rope_fusion, description="Rotary positions by Transformer Engine's fused kernels (GPU)."
    )
    cuda_graphs: bool = Field(
        default=_MODEL.cuda_graphs, description="Layers run as CUDA graphs; every cell is rejected, with the reason."
    )
    moe: MoeSection | None = Field(default=None, description="Experts; absent: dense feed-forward blocks.")
    mtp: MtpSection | None = Field(default=None, description="Multi-token prediction; absent: none.")
    mla: MlaSection | None = Field(default=None, description="Multi-latent attention; absent: heads and kv_heads.")


MODEL_ALIASES = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn",
    "vocab_size": "vocab",
    "padded_vocab_size": "vocab",
    "rotary_base": "rope_base",
    "apply_rope_fusion": "rope_fusion",
    "share_embeddings_and_output_weights": "tied",
}
MOE_ALIASES = {
    "num_experts": "experts",
    "num_moe_experts": "experts",
    "moe_router_topk": "topk",
    "moe_ffn_hidden_size": "ffn",
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": "aux_loss_coeff",
    "moe_token_dispatcher_type": "dispatcher",
}
MTP_ALIASES = {"mtp_num_layers": "layers", "mtp_loss_scaling_factor": "loss_factor"}
MLA_ALIASES = {"rope_type": "rope"}
PARTS: dict[str, tuple[type[Section], dict[str, str], type[Any]]] = {
    "moe": (MoeSection, MOE_ALIASES, MoeConfig),
    "mtp": (MtpSection, MTP_ALIASES, MtpConfig),
    "mla": (MlaSection, MLA_ALIASES, MlaConfig),
}
WRONG: Any = object()  # a part that has added a problem


def model_part(key: str, value: Any, path: KeyPath, problems: Problems) -> Any:
    """The configuration of `moe`, `mtp` or `mla`, None where there is none, or WRONG after adding its problems."""
    section, aliases, config = PARTS[key]
    if value is None:
        return None
    checked = problems.validate(section, value, path, aliases)
    return WRONG if checked is None else config(**checked.model_dump())


def parse_model(values: Any, problems: Problems) -> ModelConfig | None:
    """The `model:` section; None after adding all its problems."""
    path: KeyPath = ("model",)
    plain = problems.canonical(values, MODEL_ALIASES, path)
    if plain is None:
        return None
    parts = {key: model_part(key, plain.pop(key), (*path, key), problems) for key in PARTS if key in plain}
    section = problems.validate(ModelSection, plain, path, MODEL_ALIASES)
    if section is None or any(part is WRONG for part in parts.values()):
        return None
    model = ModelConfig(**section.model_dump(exclude=set(PARTS)), **parts)
    for key, message in model_problems(model):
        problems.add((*path, *key.split(".")), message)
    return model


def model_problems(model: ModelConfig) -> list[tuple[str, str]]:
    """What makes a model impossible in every layout: (key, message with the arithmetic)."""
    found = []
    if model.hidden % model.heads:
        found.append(("heads", f"hidden {model.hidden} is not divisible by heads {model.heads}"))
    elif model.hidden // model.heads % 2:
        size = model.hidden // model.heads
        found.append(("heads", f"rotary positions need an even head size: {model.hidden} / {model.heads} = {size}"))
    if model.heads % model.kv_heads:
        found.append(("kv_heads", f"heads {model.heads} is not divisible by kv_heads {model.kv_heads}"))
    moe, mla = model.moe, model.mla
    if moe and moe.topk > moe.experts:
        found.append(("moe.topk", f"a token cannot go to {moe.topk} of {moe.experts} experts"))
    if mla and mla.qk_pos_emb_head_dim % 2:
        size = mla.qk_pos_emb_head_dim
        found.append(("mla.qk_pos_emb_head_dim", f"rotary positions turn pairs, and {size} is odd"))
    return found


def shown_part(part: Mapping[str, Any] | Any) -> str:
    """A part of a model as the value of an axis."""
    return "none" if part is None else str(part)
