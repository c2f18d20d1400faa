"""Models of the package transformers, in float64 throughout, with the oracle's weights under their names."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers.modeling_rope_utils as rope_utils
import transformers.vision_utils as vision_utils
from torch import Tensor

from harness.features.vision.config import TOWER
from harness.oracle.fields import Model, Vision
from harness.oracle.weights import EMBEDDING, MERGER, OUTPUT, deepstack_merger, final_norm, layer_name

Tensors = dict[str, Tensor]


class _Wide:
    """A torch whose float32 is float64: the package rounds norms, softmax and angles to float32 whatever its dtype."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def in_float64(module: Any) -> Iterator[None]:
    """The package's module, its positions of tokens and patches too, compute in float64. Models must be made inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "torch", _Wide())
        patch.setattr(rope_utils, "torch", _Wide())
        patch.setattr(vision_utils, "torch", _Wide())
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def module_of(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def renamed(tensors: Mapping[str, Tensor], model: Model, at: str = "model") -> Tensors:
    """Tensors by global name -> by the names that all these models share, of a language model `at` a name."""
    found = {f"{at}.embed_tokens.weight": tensors[f"{EMBEDDING}.weight"]}
    found[f"{at}.norm.weight"] = tensors[f"{final_norm(model)}.weight"]
    if not model.tied:
        found["lm_head.weight"] = tensors[f"{OUTPUT}.weight"]
    for number in range(1, model.layers + 1):
        ours, theirs = layer_name(number), f"{at}.layers.{number - 1}"
        found[f"{theirs}.input_layernorm.weight"] = tensors[f"{ours}.input_layernorm.weight"]
        found[f"{theirs}.post_attention_layernorm.weight"] = tensors[f"{ours}.pre_mlp_layernorm.weight"]
        attention = _latent if model.latent else _grouped
        found |= attention(tensors, f"{ours}.self_attention", f"{theirs}.self_attn", model)
        block = _experts if model.has_experts(number) else _feed_forward
        found |= block(tensors, f"{ours}.mlp", f"{theirs}.mlp", model)
    return found


def renamed_tower(tensors: Mapping[str, Tensor], vision: Vision) -> Tensors:
    """The same of an image tower, whose queries of all heads come first there, then the keys, then the values."""
    names = {f"{TOWER}patch_embed.proj": "patch_embed.proj", f"{TOWER}pos_embed": "pos_embed"}
    for number in range(1, vision.tower.layers + 1):
        ours, theirs = f"{TOWER}{layer_name(number)}", f"blocks.{number - 1}"
        names |= {f"{ours}.input_layernorm": f"{theirs}.norm1", f"{ours}.pre_mlp_layernorm": f"{theirs}.norm2"}
        names |= {f"{ours}.self_attention.linear_{part}": f"{theirs}.attn.{part}" for part in ("qkv", "proj")}
        names |= {f"{ours}.mlp.{part}": f"{theirs}.mlp.{part}" for part in ("linear_fc1", "linear_fc2")}
    lists = {deepstack_merger(index): f"deepstack_merger_list.{index}" for index in range(len(vision.deepstack))}
    for ours, theirs in (lists | {MERGER: "merger"}).items():
        names |= {f"{ours}.{part}": f"{theirs}.{part}" for part in ("linear_fc1", "linear_fc2")}
        names[f"{ours}.patch_norm"] = f"{theirs}.norm"
    found: Tensors = {}
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            if (tensor := tensors.get(f"{ours}.{kind}")) is not None:
                if theirs.endswith("qkv"):
                    by_head = tensor.view(vision.tower.heads, 3, vision.tower.head, *tensor.shape[1:])
                    tensor = by_head.transpose(0, 1).reshape(tensor.shape)
                found[f"model.visual.{theirs}.{kind}"] = tensor
    return found


def _grouped(tensors: Mapping[str, Tensor], ours: str, theirs: str, model: Model) -> Tensors:
    share = model.heads // model.groups
    found = {f"{theirs}.o_proj.weight": tensors[f"{ours}.linear_proj.weight"]}
    for kind in ("weight", "bias"):
        if f"{ours}.linear_qkv.{kind}" in tensors:
            fused = tensors[f"{ours}.linear_qkv.{kind}"]
            by_group = fused.view(model.groups, share + 2, model.head, *fused.shape[1:])
            parts = torch.split(by_group, [share, 1, 1], dim=1)
            for letter, part in zip("qkv", parts):
                found[f"{theirs}.{letter}_proj.{kind}"] = part.reshape(-1, *fused.shape[1:])
    if model.qk_norm:
        for letter in "qk":
            found[f"{theirs}.{letter}_norm.weight"] = tensors[f"{ours}.{letter}_layernorm.weight"]
    return found


def _latent(tensors: Mapping[str, Tensor], ours: str, theirs: str, model: Model) -> Tensors:
    names = {
        "linear_kv_down_proj": "kv_a_proj_with_mqa",
        "kv_layernorm": "kv_a_layernorm",
        "linear_kv_up_proj": "kv_b_proj",
        "linear_proj": "o_proj",
        "linear_q_proj": "q_proj",
        "linear_q_down_proj": "q_a_proj",
        "q_layernorm": "q_a_layernorm",
        "linear_q_up_proj": "q_b_proj",
    }
    known = {own: other for own, other in names.items() if f"{ours}.{own}.weight" in tensors}
    return {f"{theirs}.{other}.weight": tensors[f"{ours}.{own}.weight"] for own, other in known.items()}


def _feed_forward(tensors: Mapping[str, Tensor], ours: str, theirs: str, model: Model) -> Tensors:
    gate, up = tensors[f"{ours}.linear_fc1.weight"].chunk(2)
    down = tensors[f"{ours}.linear_fc2.weight"]
    return {f"{theirs}.gate_proj.weight": gate, f"{theirs}.up_proj.weight": up, f"{theirs}.down_proj.weight": down}


def _experts(tensors: Mapping[str, Tensor], ours: str, theirs: str, model: Model) -> Tensors:
    assert model.experts is not None
    numbers = range(model.experts.count)
    found = {
        f"{theirs}.gate.weight": tensors[f"{ours}.router.weight"],
        f"{theirs}.experts.gate_up_proj": torch.stack(
            [tensors[f"{ours}.experts.{number}.linear_fc1.weight"] for number in numbers]
        ),
        f"{theirs}.experts.down_proj": torch.stack(
            [tensors[f"{ours}.experts.{number}.linear_fc2.weight"] for number in numbers]
        ),
    }
    if model.experts.shared:
        gated = model.experts.shared_gate
        shared = f"{theirs}.shared_expert" if gated else f"{theirs}.shared_experts"
        found |= _feed_forward(tensors, f"{ours}.shared_experts", shared, model)
        found |= {f"{shared}_gate.weight": tensors[f"{ours}.shared_experts.gate_weight"]} if gated else {}
    return found
