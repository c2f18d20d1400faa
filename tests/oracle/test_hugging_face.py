"""The model against classes of the package transformers with random weights: logits, losses and gradients to 1e-10."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from harness.oracle.experts import balance_loss
from harness.oracle.fields import Experts, Latent, Model, Rotary, Yarn
from harness.oracle.loss import cross_entropy
from harness.oracle.model import forward
from harness.oracle.weights import initial_weights
from tests.oracle.hugging_face import in_float64, module_of, renamed
from tests.oracle.streams import stream

WITHIN = 1e-10
PLAIN = Model(layers=2, hidden=32, vocab=64, heads=4, groups=2, head=8, ffn=48, epsilon=1e-6)
MIXED = Experts(count=6, chosen=2, ffn=24)
YARN = Yarn(factor=4.0, context=32, fast=8.0, slow=1.0, mscale=0.7, mscale_all=0.9)
LATENT = Latent(query_rank=12, rank=16, still=8, turned=8, value=10, scale=0.25, rotary=Rotary(pairs_in=True))
STRETCHED = replace(LATENT, scale=YARN.temperature(0.9) ** 2 / 4, rotary=Rotary(pairs_in=True, yarn=YARN))
SCALED = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DEEP = replace(
    PLAIN,
    latent=LATENT,
    qk_norm=True,
    layers=3,
    expert_layers=(False, True, True),
    experts=Experts(
        count=8, chosen=4, ffn=24, score="sigmoid", biased=True, groups=4, chosen_groups=2, factor=2.5, shared=48
    ),
)
DEEP_NAMES = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "norm_topk_prob": True,
    "num_key_value_heads": 4,
}
STRETCHED_NAMES = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}


@dataclass(frozen=True)
class Case:
    kind: str  # "llama" for LlamaForCausalLM
    config: str  # the class of its configuration
    model: Model
    given: dict[str, Any]  # of that configuration, besides what all have
    rope: dict[str, Any]


CASES = {
    "llama": Case("llama", "LlamaConfig", PLAIN, {}, {}),
    "llama-tied": Case("llama", "LlamaConfig", replace(PLAIN, tied=True), {}, {}),
    "llama3-rope": Case(
        "llama",
        "LlamaConfig",
        replace(PLAIN, head=16, rotary=Rotary(base=500_000, llama_factor=8.0)),
        {"head_dim": 16},
        {**SCALED, "factor": 8.0, "original_max_position_embeddings": 8192, "rope_theta": 500_000.0},
    ),
    "linear-rope": Case(
        "llama",
        "LlamaConfig",
        replace(PLAIN, rotary=Rotary(interpolation=3.0)),
        {},
        {"rope_type": "linear", "factor": 3.0},
    ),
    "qwen2": Case("qwen2", "Qwen2Config", replace(PLAIN, qkv_bias=True), {}, {}),
    "qwen3": Case("qwen3", "Qwen3Config", replace(PLAIN, qk_norm=True, head=12), {"head_dim": 12}, {}),
    "mixtral": Case(
        "mixtral",
        "MixtralConfig",
        replace(PLAIN, experts=MIXED),
        {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24},
        {},
    ),
    "qwen3_moe": Case(
        "qwen3_moe",
        "Qwen3MoeConfig",
        replace(PLAIN, qk_norm=True, experts=MIXED),
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "head_dim": 8,
        },
        {},
    ),
    "qwen3_moe-before": Case(
        "qwen3_moe",
        "Qwen3MoeConfig",
        replace(PLAIN, qk_norm=True, experts=replace(MIXED, before=True)),
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
            "head_dim": 8,
        },
        {},
    ),
    "qwen2_moe": Case(
        "qwen2_moe",
        "Qwen2MoeConfig",
        replace(PLAIN, qkv_bias=True, experts=replace(MIXED, shared=20, shared_gate=True)),
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20,
            "norm_topk_prob": True,
        },
        {},
    ),
    "deepseek_v3": Case("deepseek_v3", "DeepseekV3Config", DEEP, DEEP_NAMES, {}),
    "deepseek_v3-yarn": Case(
        "deepseek_v3", "DeepseekV3Config", replace(DEEP, latent=STRETCHED), DEEP_NAMES, STRETCHED_NAMES
    ),
    "deepseek_v3-query": Case(
        "deepseek_v3",
        "DeepseekV3Config",
        replace(DEEP, latent=replace(LATENT, query_rank=None)),
        {**DEEP_NAMES, "q_lora_rank": None},
        {},
    ),
}


def theirs(case: Case) -> Any:
    """Their model in float64, with eager attention."""
    model = case.model
    rope = {"rope_type": "default", "rope_theta": 10_000.0, **case.rope}
    config = getattr(transformers, case.config)(
        **{
            "vocab_size": model.vocab,
            "hidden_size": model.hidden,
            "intermediate_size": model.ffn,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.groups,
            "rms_norm_eps": model.epsilon,
            "tie_word_embeddings": model.tied,
            "rope_parameters": rope,
            "attn_implementation": "eager",
            "experts_implementation": "eager",
            **case.given,
        }
    )
    module = module_of(case.kind)
    name = next(name for name in vars(module) if name.endswith("ForCausalLM"))
    return getattr(module, name)(config).double()


def off(found: Tensor, right: Tensor) -> float:
    """Relative distance."""
    return float(((found - right).norm() / right.norm()).detach())


@pytest.mark.parametrize("name", CASES)
def test_logits_losses_and_gradients_agree(name: str) -> None:
    """On two documents, packed into one row here and computed one by one there."""
    case, model = CASES[name], CASES[name].model
    weights = initial_weights(model, 7, torch.float64)
    with torch.no_grad():  # larger than the initial ones, so that nothing is nearly linear
        for weight in weights.values():
            weight.mul_(8.0 if weight.dim() > 1 else 1.0)
    generator = torch.Generator().manual_seed(3)
    count = model.experts.count if model.experts else 0
    drawn = [torch.randn(count, generator=generator, dtype=torch.float64) * 0.3 for _ in range(model.layers)]
    is_biased = model.experts is not None and model.experts.biased
    biases = {number: bias if is_biased else bias * 0 for number, bias in enumerate(drawn, 1)}
    rows = stream(model.vocab, (23, 38))
    ours = forward(weights, model, rows, biases).logits
    our_losses = cross_entropy(ours, rows.labels)
    our_losses.mean().backward()
    with in_float64(module_of(case.kind)):
        other = theirs(case)
        missing = other.load_state_dict(renamed(weights, model), strict=False)
        assert not missing.unexpected_keys
        assert {key.rpartition(".")[2] for key in missing.missing_keys} <= {"e_score_correction_bias"} or model.tied
        for layer, bias in zip(other.model.layers, drawn):
            if hasattr(layer.mlp, "gate") and is_biased:
                layer.mlp.gate.e_score_correction_bias = bias
        logits = torch.cat(
            [other(part[None], use_cache=False).logits[0] for part in torch.split(rows.tokens, list(rows.segments))]
        )
        losses = F.cross_entropy(logits, rows.labels, reduction="none")
        losses.mean().backward()
    assert logits.dtype == torch.float64
    assert off(ours, logits) < WITHIN
    assert off(our_losses, losses) < WITHIN
    right = {key: parameter.grad for key, parameter in other.named_parameters()}
    found = renamed({key: weight.grad for key, weight in weights.items()}, model)
    assert found.keys() == right.keys()
    wrong = {key: off(found[key], right[key]) for key in right}
    assert max(wrong.values()) < WITHIN, max(wrong, key=lambda key: wrong[key])


def test_the_auxiliary_loss_is_that_of_mixtral() -> None:
    """Theirs is per chosen expert: k times as large."""
    experts = replace(MIXED, balance="aux_loss", balance_weight=0.3)
    model = replace(PLAIN, layers=1, experts=experts)
    rows = stream(model.vocab, (23, 38))
    weights = initial_weights(model, 7, torch.float64)
    (routed,) = forward(weights, model, rows, {1: torch.zeros(6, dtype=torch.float64)}).routed
    own = float(balance_loss(routed, [routed], [], experts).detach())
    module = module_of("mixtral")
    with in_float64(module):
        other = float(module.load_balancing_loss_func((routed.logits.detach(),), 6, 2))
    assert own == pytest.approx(0.3 * other / 2, rel=1e-6)  # their counts are in float32
