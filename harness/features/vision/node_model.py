"""Megatron-Bridge's Qwen3-VL model: its configuration, its construction with local layers, its language model.

Upstream's constructor takes the vision tower's layers from Transformer Engine and has no argument for others. Here it
gets Megatron's own local layers, as the language model does, and attention within each image in place of a kernel.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.model import ModelConfig
from harness.features.vision.config import CHANNELS, MERGE, PATCH, POSITIONS, TEMPORAL_PATCH, VisionConfig
from harness.upstreams.node_lookup import Unavailable, module_unavailable

PACKAGE = "models.qwen_vl.modelling_qwen3_vl"


def unavailable_vision(config: CellConfig) -> Unavailable:
    """Return why the software under test cannot build the cell's model; None when it can, or when it has no vision."""
    if config.model.vision is None:
        return None
    return module_unavailable(f"megatron.bridge.{PACKAGE}.model", "megatron.bridge")


def vision_config_class() -> Any:
    """Return upstream's configuration of the whole model, a TransformerConfig."""
    return _module("transformer_config").Qwen3VLTransformerConfig


def attention_class() -> Any:
    """Return upstream's attention, which takes a position for each token rather than for each offset in a document."""
    return _module("attention").Qwen3VLSelfAttention


def build_vision_model(config: CellConfig, upstream: Any, spec: Any, arguments: dict[str, Any]) -> Any:
    """Build a chunk of Qwen3VLModel.

    `arguments`: those of GPTModel, of which it takes some; the rest is in `upstream`.
    """
    vision = config.model.vision
    assert vision is not None
    if not hasattr(upstream, "enable_cuda_graph"):
        # Qwen3VLModel reads this field, which not every megatron-core has.
        upstream.enable_cuda_graph = False
    names = ("pre_process", "post_process", "parallel_output", "vp_stage", "pg_collection")
    passed = {name: value for name, value in arguments.items() if name in names}
    with _local_layers():
        model = model_class()(upstream, spec, hf_config(config.model, vision), **passed)
    model.model_type = ModelType.encoder_or_decoder  # as megatron.training.get_model and Megatron-Bridge set it
    return model


def model_class() -> Any:
    """Return upstream's class of the whole model."""
    return _module("model").Qwen3VLModel


def hf_config(model: ModelConfig, vision: VisionConfig) -> Any:
    """Return the tower's configuration, as Hugging Face stores it."""
    tower = {
        "depth": vision.layers,
        "hidden_size": vision.hidden,
        "num_heads": vision.heads,
        "intermediate_size": vision.ffn,
        "in_channels": CHANNELS,
        "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL_PATCH,
        "spatial_merge_size": MERGE,
        "num_position_embeddings": POSITIONS,
        "out_hidden_size": model.hidden,
        "deepstack_visual_indexes": list(range(vision.deepstack)),
    }
    return _module("model").Qwen3VLConfigHF(vision_config=tower).vision_config


def language_of(chunk: Any) -> Any:
    """Return the language model of a chunk with vision, else the chunk (the module inside DDP)."""
    return getattr(chunk, "language_model", chunk)


def tower_of(chunk: Any) -> Any:
    """Return the image tower of a chunk (the module inside DDP), None without one."""
    return getattr(chunk, "vision_model", None)


class ImageAttention(MegatronModule):  # type: ignore[misc]
    """Attention of the tower: every patch attends to all patches of its image."""

    def __init__(self, config: Any, layer_number: int, *_: Any, **__: Any) -> None:
        super().__init__(config=config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any, **__: Any) -> Tensor:
        """Attend: [patches, heads, size] to [patches, heads * size].

        The offsets of images are in `packed_seq_params`.
        """
        # One segment per frame, by upstream's build_packed_seq_params.
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        parts = zip(*(torch.split(part.transpose(0, 1), lengths, 1) for part in (query, key, value)))
        return torch.cat([F.scaled_dot_product_attention(*part).transpose(0, 1).flatten(1) for part in parts])


class ImageNorm(torch.nn.LayerNorm):
    """The tower's norm with upstream's arguments."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps, dtype=config.params_dtype)


def _local_spec() -> Any:
    # Before core_v0.14 this module cannot be imported without Transformer Engine.
    layers: Any = importlib.import_module("megatron.core.models.vision.vit_layer_specs")
    spec = layers.get_vit_layer_with_local_spec()
    spec.submodules.self_attention.submodules.core_attention = ImageAttention
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = ImageNorm
    return spec


@contextmanager
def _local_layers() -> Iterator[None]:
    """Give upstream's constructor Megatron's local layers for the tower while the body runs."""
    layers = {
        "get_vit_layer_with_transformer_engine_spec": _local_spec,
        "TEColumnParallelLinear": ColumnParallelLinear,
        "TERowParallelLinear": RowParallelLinear,
        "TENorm": ImageNorm,
    }
    with patch.multiple(_module("model"), **layers):
        yield


def _module(name: str) -> Any:
    return importlib.import_module(f"megatron.bridge.{PACKAGE}.{name}")
