"""The model and the optimizer that a cell asks for, as fields of upstream's configurations.

Every trainer and data path builds this one, or the cell is ERROR (judge/built_check.py). Fields that are not named here
have upstream's defaults.
"""

from __future__ import annotations

import json
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.cell.model import MlaConfig, ModelConfig, MoeConfig
from harness.core.layer_pattern import CONVOLUTION, EXPANSION, RECURRENT, STATE_SIZE
from harness.core.setting import upstream_of
from harness.core.vision import (
    CHANNELS,
    IMAGE,
    MERGE,
    PATCH,
    POSITIONS,
    TEMPORAL_PATCH,
    VIDEO,
    VISION_START,
    VisionConfig,
)

_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}
ACTIVATION = "silu"  # of torch.nn.functional
_OF_TOWER = 'gelu(approximate: "tanh")'


def asked(config: CellConfig) -> dict[str, dict[str, str]]:
    """Part (BuiltSeen.of) -> field -> value as text, in the form of `BuiltSeen.values`."""
    # Qwen3-VL scatters embeddings itself, after it has put the images in.
    scattered = {"scatter_embedding_sequence_parallel": False} if config.model.vision else {}
    tower = {}
    if config.model.vision:
        tower = {"tower": _texts(_tower_fields(config.model, config.model.vision)) | {"activation_func": _OF_TOWER}}
    precision = {"params_dtype": _DTYPES[config.dtype], "bf16": json.dumps(config.dtype == "bf16")}
    return {
        "model": _texts(model_fields(config)) | precision | {"activation_func": ACTIVATION},
        "constructor": _texts(constructor_arguments(config.model) | scattered),
        "ddp": _texts({"grad_reduce_in_fp32": True}),
        "optimizer": _texts({"optimizer": "adam", **optimizer_fields(config)}) | precision,
        **tower,
    }


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in values.items()}


def model_fields(config: CellConfig) -> dict[str, Any]:
    """Fields of TransformerConfig that say what is computed; its dtypes and functions are torch's."""
    model = config.model
    fields = {
        **upstream_of(config.layout),
        **upstream_of(model),
        **upstream_of(config.options),
        "kv_channels": model.hidden // model.heads,
        "window_size": None if model.window is None else (model.window, 0),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "layernorm_epsilon": 1e-5,
        "gated_linear_unit": True,
    }
    if model.hybrid:
        fields |= recurrent_fields(model)
    if model.vision:
        fields |= _vision_fields(model, model.vision)
    if model.moe:
        fields |= _expert_fields(model.moe)
    if model.mtp:
        fields |= upstream_of(model.mtp)
    return fields | (_latent_fields(model, model.mla) if model.mla else {})


def recurrent_fields(model: ModelConfig) -> dict[str, Any]:
    """Sizes of recurrent layers, if there are any. They have the heads of attention: values all, keys kv_heads."""
    if not set(RECURRENT) & set(model.pattern):
        return {}
    size = model.hidden // model.heads
    return {
        "linear_conv_kernel_dim": CONVOLUTION,
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
        "linear_num_key_heads": model.kv_heads,
        "linear_num_value_heads": model.heads,
        "mamba_state_dim": STATE_SIZE,
        "mamba_head_dim": EXPANSION * size,
        "mamba_num_heads": model.heads,
        "mamba_num_groups": model.kv_heads,
    }


def _vision_fields(model: ModelConfig, vision: VisionConfig) -> dict[str, Any]:
    """Fields that Qwen3-VL's configuration of the language model has besides; some become arguments of constructors."""
    return {
        **upstream_of(vision),
        "mrope_section": list(vision.sections),
        "vocab_size": model.vocab,
        "rotary_base": model.rope_base,
        "share_embeddings_and_output_weights": model.tied,
        "spatial_merge_size": MERGE,
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION_START,
        "deepstack_visual_indexes": list(range(vision.deepstack)),
    }


def _tower_fields(model: ModelConfig, vision: VisionConfig) -> dict[str, Any]:
    """Fields of the image tower's configuration; of those that the cell does not choose, as Qwen3-VL has them."""
    return {
        "num_layers": vision.layers,
        "hidden_size": vision.hidden,
        "num_attention_heads": vision.heads,
        "num_query_groups": vision.heads,
        "kv_channels": vision.hidden // vision.heads,
        "ffn_hidden_size": vision.ffn,
        "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL_PATCH,
        "in_channels": CHANNELS,
        "spatial_merge_size": MERGE,
        "num_position_embeddings": POSITIONS,
        "out_hidden_size": model.hidden,
        "deepstack_visual_indexes": list(range(vision.deepstack)),
        "normalization": "LayerNorm",
        "layernorm_epsilon": 1e-6,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "gated_linear_unit": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "apply_rotary_pos_emb_in_fp32": True,
        # Upstream sets these too, for nothing: the tower has no stages, and its positions are rows and columns.
        "account_for_embedding_in_pipeline_split": None,
        "account_for_loss_in_pipeline_split": None,
        "mrope_section": [24, 20, 20],
    }


def _expert_fields(moe: MoeConfig) -> dict[str, Any]:
    return {
        **upstream_of(moe),
        "moe_aux_loss_coeff": moe.aux_loss_coeff if moe.balanced else 0.0,
        "moe_z_loss_coeff": moe.z_loss_coeff or None,  # upstream divides by it in its log
        "moe_router_pre_softmax": moe.pre_softmax,
    }


def _latent_fields(model: ModelConfig, mla: MlaConfig) -> dict[str, Any]:
    return {
        **upstream_of(mla),
        "multi_latent_attention": True,
        "rotary_base": model.rope_base,
        "qk_layernorm": mla.normed,
        "num_query_groups": model.heads,
    }


def constructor_arguments(model: ModelConfig) -> dict[str, Any]:
    """Arguments of the model's constructor that say what is computed."""
    return {
        "vocab_size": model.vocab,
        "position_embedding_type": "mrope" if model.vision else "rope",
        "rotary_base": model.rope_base,
        "share_embeddings_and_output_weights": model.tied,
    }


def weight_decay(config: CellConfig) -> float:
    """Of parameters with several dimensions; biases and norms do not decay. Without `args` upstream's default."""
    return config.args.numbers().get("weight_decay", 0.01)


def optimizer_fields(config: CellConfig) -> dict[str, Any]:
    """Fields of OptimizerConfig: Adam's; gradients are clipped only if the cell asks for it."""
    return {"lr": config.train.lr, "clip_grad": 0.0, **config.args.numbers()}
