"""Compares megatron-core's GPTModel on one rank with the oracle, for models that no matrix has; prints JSON.

For each variant the distance of its losses and of its worst gradient, as the configuration that was built is read.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from harness.core.run.records import BuiltSeen
from harness.features.attention.node_reference import ReferenceAttention
from harness.oracle.fields import Model, uncovered
from harness.oracle.loss import cross_entropy
from harness.oracle.model import forward
from harness.oracle.weights import initial_weights
from harness.probe.built import arguments_of, keep_arguments, values_of
from harness.probe.weights import initialize, named_parameters
from harness.runtime.device import cpu_stubs
from tests.oracle.streams import stream

SIZES = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "ffn_hidden_size": 48,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "use_cpu_initialization": True,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
}
PLAIN = {"normalization": "RMSNorm", "add_bias_linear": False, "gated_linear_unit": True, "activation_func": F.silu}
EXPERTS = {
    "num_moe_experts": 8,
    "moe_router_topk": 4,
    "moe_ffn_hidden_size": 24,
    "moe_router_score_function": "sigmoid",
}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_head_dim": 8, "qk_pos_emb_head_dim": 8, "v_head_dim": 8}
WEIGHT_FACTOR = 5.0  # of matrices, so that nothing is nearly linear


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


# Name -> fields of the configuration, arguments of the constructor.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "layer norm, biases, gelu, tied, half of each head turned": (
        {"normalization": "LayerNorm", "layernorm_epsilon": 1e-3, "activation_func": F.gelu},
        {"share_embeddings_and_output_weights": True, "rotary_percent": 0.5},
    ),
    "fused gelu with biases": (
        {"normalization": "LayerNorm", "activation_func": F.gelu, "bias_activation_fusion": True},
        {},
    ),
    "squared relu, biases of queries, interleaved pairs, wide heads": (
        PLAIN
        | {"gated_linear_unit": False, "activation_func": squared_relu, "add_qkv_bias": True}
        | {"rotary_interleaved": True, "kv_channels": 12},
        {},
    ),
    "no positions": (PLAIN, {"position_embedding_type": "none"}),
    "learned positions": (PLAIN, {"position_embedding_type": "learned_absolute"}),
    "no positions in the second layer": (PLAIN | {"no_rope_freq": 2}, {}),
    "scaled as Llama 3": (PLAIN, {"rope_scaling": True, "rope_scaling_factor": 4.0, "rotary_base": 500_000}),
    "interpolated": (PLAIN | {"qk_layernorm": True}, {"seq_len_interpolation_factor": 3.0}),
    "offset and clamped gates": (
        PLAIN | {"activation_func": quick_gelu, "glu_linear_offset": 1.0, "activation_func_clamp_value": 0.2},
        {},
    ),
    "groups of experts in the second layer, and a shared one": (
        PLAIN
        | EXPERTS
        | {"moe_router_score_function": "sigmoid", "moe_layer_freq": [0, 1]}
        | {"moe_shared_expert_intermediate_size": 24, "moe_shared_expert_gate": True}
        | {"moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_topk_scaling_factor": 2.5},
        {},
    ),
    "experts without gates, softmax before the choice": (
        PLAIN | EXPERTS | {"moe_router_pre_softmax": True, "activation_func": F.gelu, "gated_linear_unit": False},
        {},
    ),
    "latent attention with a temperature of both kinds": (
        PLAIN | LATENT | {"multi_latent_attention": True, "qk_layernorm": True, "mscale": 0.7, "mscale_all_dim": 0.9},
        {},
    ),
}


def build(fields: dict[str, Any], arguments: dict[str, Any]) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if fields.get("multi_latent_attention") else TransformerConfig
    config = kind(**SIZES | fields)
    if config.num_moe_experts:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization)
    else:
        spec = get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm,
            multi_latent_attention=config.multi_latent_attention,
            normalization=config.normalization,
        )
    if config.multi_latent_attention:  # upstream's own needs Transformer Engine
        spec.submodules.self_attention.submodules.core_attention = ReferenceAttention
    given = {"position_embedding_type": "rope"} | arguments
    return GPTModel(config, spec, vocab_size=64, max_sequence_length=64, **given)


def compared(fields: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    model = build(fields, arguments)
    built = [
        BuiltSeen(of="model", values=values_of("model", model.config)),
        BuiltSeen(of="constructor", values=arguments_of(model)),
    ]
    ours = Model.read(built)
    initialize(model, seed=5, tp_rank=0, tp_size=1)
    weights = initial_weights(ours, 5, torch.float64)
    rows = stream(ours.vocab, (40,))
    items = {item.name: item.parameter for item in named_parameters(model, tp_rank=0, tp_size=1)}
    assert items.keys() == weights.keys(), sorted(items.keys() ^ weights.keys())
    with torch.no_grad():
        for name, weight in weights.items():
            if weight.dim() > 1:
                weight.mul_(WEIGHT_FACTOR)
                items[name].mul_(WEIGHT_FACTOR)
    count = ours.experts.count if ours.experts else 0
    zeros = {number: torch.zeros(count, dtype=torch.float64) for number in range(1, ours.layers + 1)}
    losses = cross_entropy(forward(weights, ours, rows, zeros).logits, rows.labels)
    losses.mean().backward()  # type: ignore[no-untyped-call]
    mask = torch.ones(1, 1, rows.slots, rows.slots, dtype=torch.bool).triu(1)
    theirs = model(rows.tokens[None], rows.positions[None], mask, labels=rows.labels[None])[0]
    theirs.mean().backward()
    worst = {name: off(items[name].grad, weight.grad) for name, weight in weights.items()}
    name = max(worst, key=lambda key: worst[key])
    return {"loss": off(theirs, losses), "gradient": worst[name], "at": name, "uncovered": uncovered(built)}


def off(found: Any, right: Any) -> float:
    return float(((found.double() - right).norm() / right.norm()).detach())


def main() -> None:
    warnings.simplefilter("ignore")
    cpu_stubs.install()
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    keep_arguments()
    print(json.dumps({name: compared(*given) for name, given in VARIANTS.items()}))


if __name__ == "__main__":
    main()
