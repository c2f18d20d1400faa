"""Fields of upstream's configurations: what the oracle reads of them, and which it does not model.

It may ignore those that core/cell/upstream_config.py lists. Part "tower" is the configuration of an image tower.

Values are text, as ranks record them (core/run/records.py BuiltSeen): of a configuration those that differ from
megatron-core's defaults, of a constructor all. `uncovered` names the fields for which the oracle would not compute what
upstream does; without any, `Model.read` and `Optimizer.read` have all that matters. Defaults: megatron-core 0.19.2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.core.cell import upstream_config as core
from harness.core.run.records import BuiltSeen
from harness.features.adapters.config import PeftConfig
from harness.features.hybrid.pattern import EXPERTS, GATED_DELTA, MAMBA, MIXERS, layers_of

ANY = ()


class Modelled(NamedTuple):
    """A field that the oracle reads: its default, and if it does not model all values, those that it does."""

    default: str
    values: tuple[str, ...] = ANY


def _only(default: str, *more: str) -> Modelled:
    return Modelled(default, (default, *more))


# Fields that the layers of a language model and of an image tower have.
_OF_LAYERS = {
    "num_layers": Modelled("0"),
    "hidden_size": Modelled("0"),
    "num_attention_heads": Modelled("0"),
    "num_query_groups": Modelled("null"),
    "kv_channels": Modelled("null"),
    "ffn_hidden_size": Modelled("null"),
    "normalization": _only('"LayerNorm"', '"RMSNorm"'),
    "layernorm_epsilon": Modelled("1e-05"),
    "layernorm_zero_centered_gamma": Modelled("false"),
    "add_bias_linear": Modelled("true"),
    "add_qkv_bias": Modelled("false"),
    # The oracle draws no random masks, so the default itself is not modelled: a cell must switch dropout off.
    "hidden_dropout": Modelled("0.1", ("0.0",)),
    "attention_dropout": Modelled("0.1", ("0.0",)),
}
# Fields of Megatron-Bridge's Qwen3VLTransformerConfig that the tower reads; the language model's has them too.
_OF_TOWER = {
    "patch_size": Modelled("16"),
    "temporal_patch_size": Modelled("2"),
    "in_channels": Modelled("3"),
    "num_position_embeddings": Modelled("2304"),
    "out_hidden_size": Modelled("4096"),
    "deepstack_visual_indexes": Modelled("[8, 16, 24]"),
}
_LOSSES = ('"aux_loss"', '"seq_aux_loss"', '"global_aux_loss"', '"none"')
MODELLED: dict[str, dict[str, Modelled]] = {
    "model": {
        **_OF_LAYERS,
        "gated_linear_unit": Modelled("false"),
        "activation_func": _only("gelu", "silu", "squared_relu", "relu", "quick_gelu"),
        "bias_activation_fusion": Modelled("false"),
        "glu_linear_offset": Modelled("0.0"),
        "activation_func_clamp_value": Modelled("null"),
        "calculate_per_token_loss": Modelled("false"),
        # Which stage has which layers and parts does not matter to the oracle.
        "num_layers_in_first_pipeline_stage": Modelled("null"),
        "num_layers_in_last_pipeline_stage": Modelled("null"),
        "pipeline_model_parallel_layout": Modelled("null"),
        "account_for_embedding_in_pipeline_split": Modelled("false"),
        "account_for_loss_in_pipeline_split": Modelled("false"),
        "mtp_standalone": Modelled("false"),
        "params_dtype": _only("torch.float32", "torch.bfloat16"),
        "bf16": _only("false", "true"),
        "rotary_interleaved": Modelled("false"),
        "no_rope_freq": Modelled("null"),
        "qk_layernorm": Modelled("false"),
        "window_size": Modelled("null"),
        "window_attn_skip_freq": Modelled("null"),
        "softmax_type": _only('"vanilla"', '"off-by-one"', '"learnable"'),
        "softmax_scale": Modelled("null"),
        "num_moe_experts": Modelled("null"),
        "moe_layer_freq": Modelled("1"),
        "moe_ffn_hidden_size": Modelled("null"),
        "moe_router_topk": Modelled("2"),
        "moe_router_score_function": _only('"softmax"', '"sigmoid"'),
        "moe_router_pre_softmax": Modelled("false"),
        "moe_router_topk_scaling_factor": Modelled("null"),
        "moe_router_num_groups": Modelled("null"),
        "moe_router_group_topk": Modelled("null"),
        "moe_router_enable_expert_bias": Modelled("false"),
        "moe_router_bias_update_rate": Modelled("0.001"),
        "moe_router_load_balancing_type": _only(*_LOSSES),
        "moe_aux_loss_coeff": Modelled("0.0"),
        "moe_z_loss_coeff": Modelled("null"),
        "moe_expert_capacity_factor": Modelled("null"),
        "moe_token_drop_policy": _only('"probs"', '"position"'),
        "moe_pad_expert_input_to_capacity": Modelled("false"),
        "moe_shared_expert_intermediate_size": Modelled("null"),
        "moe_shared_expert_gate": Modelled("false"),
        "multi_latent_attention": Modelled("false"),
        "q_lora_rank": Modelled("512"),
        "kv_lora_rank": Modelled("512"),
        "qk_head_dim": Modelled("128"),
        "qk_pos_emb_head_dim": Modelled("64"),
        "v_head_dim": Modelled("128"),
        "rope_type": _only('"yarn"', '"rope"'),
        "rotary_base": Modelled("10000"),  # of latent attention; the constructor has that of the others
        "rotary_percent": Modelled("1.0"),  # of latent attention, as rotary_base
        "rotary_scaling_factor": Modelled("40"),
        "original_max_position_embeddings": Modelled("4096"),
        "beta_fast": Modelled("32"),
        "beta_slow": Modelled("1"),
        "mscale": Modelled("1.0"),
        "mscale_all_dim": Modelled("0.0"),
        "mtp_num_layers": Modelled("null"),
        "mtp_loss_scaling_factor": Modelled("0.1"),
        "linear_conv_kernel_dim": Modelled("4"),
        "linear_key_head_dim": Modelled("128"),
        "linear_value_head_dim": Modelled("128"),
        "linear_num_key_heads": Modelled("16"),
        "linear_num_value_heads": Modelled("32"),
        "mamba_state_dim": Modelled("128"),
        "mamba_head_dim": Modelled("64"),
        "mamba_num_groups": Modelled("8"),
        "mamba_num_heads": Modelled("null"),
        "cross_entropy_loss_fusion": _only("false"),  # it rounds gradients of logits to bf16 in every dtype
        **_OF_TOWER,
        "mrope_section": Modelled("null"),
        "image_token_id": Modelled("151655"),
        "spatial_merge_size": _only("2"),
        "apply_rotary_pos_emb_in_fp32": _only("false"),
        "should_pad_vocab": _only("false"),
        "make_vocab_size_divisible_by": Modelled("128"),  # a detail of it
        "vocab_size": Modelled("64000"),  # it and the next two become arguments of the constructor
        "share_embeddings_and_output_weights": Modelled("false"),
        "fp16_lm_cross_entropy": _only("false"),
    },
    "tower": {
        **_OF_TOWER,
        **_OF_LAYERS,
        "gated_linear_unit": _only("false"),
        "activation_func": _only("gelu", 'gelu(approximate: "tanh")', "silu", "relu"),
        "bias_activation_fusion": _only("false"),
        "spatial_merge_size": Modelled("2"),
        "apply_rotary_pos_emb_in_fp32": _only("false", "true"),
        # The tower has no stages, and its positions are rows and columns of patches.
        "mrope_section": Modelled("null"),
        "account_for_embedding_in_pipeline_split": _only("false", "null"),
        "account_for_loss_in_pipeline_split": _only("false", "null"),
    },
    "constructor": {
        "vocab_size": Modelled("0"),
        "share_embeddings_and_output_weights": Modelled("false"),
        "position_embedding_type": _only('"learned_absolute"', '"rope"', '"none"', '"mrope"'),
        "max_sequence_length": Modelled("0"),
        "rotary_base": Modelled("10000"),
        "rotary_percent": Modelled("1.0"),
        "rope_scaling": Modelled("false"),
        "rope_scaling_factor": Modelled("8.0"),
        "seq_len_interpolation_factor": Modelled("null"),
        "fp16_lm_cross_entropy": _only("false"),
        # Who holds which part of the embedding does not change what is computed.
        "scatter_embedding_sequence_parallel": _only("true", "false"),
        "mtp_block_spec": _only("null"),  # recorded where there is none: a spec is no plain value
        "pg_collection": _only("null"),  # recorded where there is none: process groups are no plain value
    },
    "ddp": {"grad_reduce_in_fp32": _only("false", "true")},
    "optimizer": {
        "optimizer": _only('"adam"'),
        "lr": Modelled("null"),  # rates and decays: core/cell/schedule.py
        "min_lr": Modelled("null"),
        "adam_beta1": Modelled("0.9"),
        "adam_beta2": Modelled("0.999"),
        "adam_eps": Modelled("1e-08"),
        "weight_decay": Modelled("0.01"),
        "decoupled_weight_decay": Modelled("true"),
        "clip_grad": Modelled("1.0"),
        "params_dtype": _only("torch.float32", "torch.bfloat16"),
        "bf16": _only("false", "true"),
    },
}

# What the oracle does not compute: why -> fields. At their defaults none of them matters.
NOT_MODELLED: dict[str, tuple[str, ...]] = {
    "other rounding than that of the cell's dtype, by which bounds were measured": (
        "disable_bf16_reduced_precision_matmul",
        "enable_autocast",
        "fp32_residual_connection",
        "moe_router_dtype",
        "logit_dtype",
        "reduce_scatter_with_fp32_accumulation",
        "param_name_patterns_for_fp32_local_accumulation",
        "main_grads_dtype",
        "main_params_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "megatron_fsdp_grad_comm_dtype",
        "megatron_fsdp_main_grads_dtype",
        "megatron_fsdp_main_params_dtype",
        "first_last_layers_bf16",
        "num_layers_at_start_in_bf16",
        "num_layers_at_end_in_bf16",
    ),
    "other places of weights and layers than the plan's": (
        "gtp_weight_remat_size",
        "expert_gtp_weight_remat_size",
        "hybrid_context_parallel",
        "use_layer_wise_distributed_optimizer",
    ),
    "weights and optimizer state in a form that ranks do not read": (
        "moe_single_grouped_bias",
        "moe_single_grouped_weight",
        "moe_shared_expert_glu_interleave_size",
        "use_custom_fsdp",
        "use_megatron_fsdp",
        "megatron_fsdp_use_decoupled_grad",
        "optimizer_cpu_offload",
        "use_precision_aware_optimizer",
        "store_param_remainders",
    ),
    "layers of inference": ("use_inference_optimized_layers",),
    "low precision, and loss scales": (
        "fp16",
        "loss_scale",
        "fp8",
        "fp8_recipe",
        "fp8_param",
        "fp8_quantizer_factory",
        "fp8_margin",
        "fp8_interval",
        "fp8_amax_history_len",
        "fp8_amax_compute_algo",
        "fp8_wgrad",
        "fp8_output_proj",
        "fp8_dot_product_attention",
        "fp8_multi_head_attention",
        "fp8_param_gather",
        "fp4",
        "fp4_recipe",
        "fp4_param",
        "fp4_quantizer_factory",
        "fp4_param_gather",
        "tp_only_amax_red",
        "reuse_grad_buf_for_mxfp8_param_ag",
        "activation_func_fp8_input_store",
        "quant_recipe",
        "use_kitchen",
        "use_kitchen_attention",
        "kitchen_attention_backend",
        "moe_router_padding_for_fp8",
        "moe_router_padding_for_quantization",
    ),
    "another attention": (
        "apply_residual_connection_post_layernorm",
        "attention_output_gate",
        "qk_l2_norm",
        "qk_clip",
        "qk_clip_alpha",
        "qk_clip_threshold",
        "experimental_attention_variant",
        "experimental_attention_variant_loss_scale_func",
        "dsa_indexer_head_dim",
        "dsa_indexer_k_norm_epsilon",
        "dsa_indexer_k_norm_fp32",
        "dsa_indexer_loss_coeff",
        "dsa_indexer_n_heads",
        "dsa_indexer_rope_interleaved",
        "dsa_indexer_rotate_activation",
        "dsa_indexer_scoring_relu",
        "dsa_indexer_skip_topk_offset",
        "dsa_indexer_topk",
        "dsa_indexer_topk_freq",
        "dsa_indexer_use_sparse_loss",
        "dsa_kernel_backend",
    ),
    "other recurrent layers, and layers that differ": (
        "linear_attention_freq",
        "mamba_training_ssm_states_dtype",
        "heterogeneous_block_specs",
        "mtp_hybrid_override_pattern",
    ),
    "other routers and experts": (
        "moe_apply_probs_on_input",
        "moe_enable_routing_replay",
        "moe_expert_rank_capacity_factor",
        "moe_grad_scale_func",
        "moe_input_jitter_eps",
        "moe_latent_size",
        "moe_mlp_glu_interleave_size",
        "moe_router_force_biased",
        "moe_router_force_load_balancing",
        "moe_router_quantile_balancing_ema",
        "moe_router_topk_limited_devices",
        "moe_token_dropping",
    ),
    "other prediction layers": ("mtp_detach_heads", "mtp_grad_scale_func", "mtp_use_repeated_layer"),
    "scaled widths": (
        "use_mup",
        "mup_attn_scale_power",
        "mup_base_head_dim",
        "mup_base_hidden_size",
        "mup_embedding_mult",
        "mup_output_mult",
        "mup_width_mult",
    ),
    "another optimizer": (
        "adaptive_muon_beta2",
        "adaptive_muon_eps",
        "adaptive_muon_moment2_method",
        "apply_wd_to_qk_layernorm",
        "decoupled_lr",
        "decoupled_min_lr",
        "grad_norm_skip_threshold",
        "lion_beta1",
        "lion_beta2",
        "muon_coefficient_type",
        "muon_extra_scale_factor",
        "muon_fp32_matmul_prec",
        "muon_momentum",
        "muon_nesterov",
        "muon_num_ns_steps",
        "muon_scalar_optimizer",
        "muon_scale_mode",
        "muon_split_qkv",
        "muon_tp_mode",
        "sgd_momentum",
        "soap_precondition_frequency",
        "soap_shampoo_beta",
        "soap_use_kl_shampoo",
    ),
    "another image tower": ("use_hf_vision_model",),
    "a test of upstream's": ("test_mode",),
}
_HARMLESS = frozenset(chain.from_iterable(core.HARMLESS.values())) - {*chain.from_iterable(NOT_MODELLED.values())}


def uncovered(built: Sequence[BuiltSeen]) -> list[tuple[str, str]]:
    """(field, value) of everything in which upstream's computation may differ from the oracle's, sorted.

    A field is uncovered if it is not modelled, or unknown, or modelled at other values only; a combination of fields
    has both names.
    """
    found: set[tuple[str, str]] = set()
    for seen in built:
        known = MODELLED.get(seen.of, {})
        for name, value in seen.values.items():
            if name in known:
                if known[name].values and not _among(value, known[name].values):
                    found.add((name, value))
            # An unknown field counts as not modelled: a new release adds some, and silence would let its cells pass
            # unread.
            elif name not in _HARMLESS and not core.unread(name, seen.values) and not _not_given(seen, value):
                found.add((name, value))
    return sorted(found | set(_together(built)))


def _not_given(seen: BuiltSeen, value: str) -> bool:
    """Return whether a value is that of an optional argument; of constructors those at their defaults are
    recorded too.
    """
    return seen.of == "constructor" and value == "null"


def _among(value: str, allowed: Sequence[str]) -> bool:
    # Parsed, since 1e-05 and 0.00001 are one number.
    return any(value == one or _parsed(value) == _parsed(one) for one in allowed)


def _together(built: Sequence[BuiltSeen]) -> Iterator[tuple[str, str]]:
    """Yield combinations of modelled fields that are not modelled."""
    model = _Values(built, "model")
    parts = {seen.of for seen in built}
    if "model" not in parts:
        yield "model", "not recorded"
        return
    for part in sorted(parts & {"model", "tower"}):
        for name in ("hidden_dropout", "attention_dropout"):  # at their default they are not recorded, and are not 0
            if value := _Values(built, part)[name]:
                yield name, str(value)
    given = _Values(built, "constructor")
    if (given["position_embedding_type"] == "mrope") is not ("tower" in parts):  # other models' MRoPE is not Qwen3-VL's
        yield "position_embedding_type", given.texts.get("position_embedding_type", "null")
    if "tower" in parts and (given["rope_scaling"] or model["rotary_interleaved"] or not model["mrope_section"]):
        yield "position_embedding_type, rope_scaling, rotary_interleaved, mrope_section", "not those of Qwen3-VL"
    if model["num_moe_experts"] and model["add_bias_linear"]:
        yield "num_moe_experts, add_bias_linear", "biases of experts"
    for name in ("rotary_interleaved", "no_rope_freq"):
        if model["multi_latent_attention"] and model[name]:
            yield f"multi_latent_attention, {name}", "both"
    if model["mtp_num_layers"]:
        yield from _of_prediction(model, given)


def _of_prediction(model: _Values, given: _Values) -> Iterator[tuple[str, str]]:
    """Fields that are not modelled together with prediction layers."""
    # By number a layer has the window; core 0.17 starts again from 1 at prediction layers, 0.16 goes on, and before all
    # are 1.
    number = "the number of a prediction layer differs between releases"
    if model["window_size"] and model["window_attn_skip_freq"]:
        yield "window_attn_skip_freq, mtp_num_layers", number
    if model["no_rope_freq"]:
        yield "no_rope_freq, mtp_num_layers", number
    if _places(given):
        yield "position_embedding_type, mtp_num_layers", "learned positions of prediction layers"


class _Values:
    """Values of the modelled fields of one part, parsed."""

    def __init__(self, built: Sequence[BuiltSeen], part: str) -> None:
        self.known = MODELLED[part]
        self.texts: dict[str, str] = {}
        for seen in built:  # chunks of a rank differ in fields of the layout only
            if seen.of == part:
                self.texts |= seen.values

    def __getitem__(self, name: str) -> Any:
        return _parsed(self.texts.get(name, self.known[name].default))


def _parsed(text: str) -> Any:
    """Return the value of a text in JSON; the text itself where it is a name."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """Frequencies stretched by how often they turn in the context of pre-training (YaRN, arXiv 2309.00071).

    Megatron-LM core_v0.19.0, YarnRotaryEmbedding.
    """

    factor: float
    context: int
    fast: float  # turns in the context, from which a frequency stays
    slow: float  # turns, up to which it is divided by the factor
    mscale: float
    mscale_all: float

    def stretched(self, plain: Tensor, rotated: int, base: float) -> Tensor:
        """Return frequencies [rotated / 2] between `plain` and `plain / factor`, by a linear ramp over their
        numbers.
        """

        def number(turns: float) -> float:  # of the frequency that turns so often
            return rotated * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(base))

        # Bounded by the size rather than by half of it, as upstream does.
        low, high = max(math.floor(number(self.fast)), 0), min(math.ceil(number(self.slow)), rotated - 1)
        # 0.001 as upstream, so that a ramp of no width is a step.
        width = high - low or 0.001
        share = ((torch.arange(rotated // 2, dtype=plain.dtype) - low) / width).clamp(0, 1)
        return plain / self.factor * share + plain * (1 - share)

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        return self.temperature(self.mscale) / self.temperature(self.mscale_all)

    def temperature(self, weight: float) -> float:
        """0.1 weight ln(factor) + 1 (section 3.4)."""
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions: attention.py."""

    base: float = 10_000
    percent: float = 1.0
    interleaved: bool = False
    interpolation: float = 1.0  # positions are divided by it (arXiv 2306.15595)
    llama_factor: float | None = None  # Llama 3's scaling
    yarn: Yarn | None = None
    pairs_in: bool = False  # latent attention: its projections give interleaved pairs, which become halves
    sections: tuple[int, ...] | None = None  # MRoPE: frequencies that follow time, height and width
    planar: bool = False  # an image tower: half of the pairs follow the row of a patch, half its column

    @property
    def amplitude(self) -> float:
        return self.yarn.amplitude if self.yarn else 1.0


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Latent attention; sizes in elements of a head unless noted."""

    query_rank: int | None  # elements of the compressed query; None: it is not compressed
    rank: int  # elements of the compressed key and value
    still: int  # of queries and keys without positions
    turned: int  # of queries and keys with positions
    value: int
    scale: float  # of scores
    rotary: Rotary


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Experts and their router: experts.py."""

    count: int
    chosen: int
    ffn: int
    score: str = "softmax"
    before: bool = False  # softmax before the choice
    factor: float = 1.0  # of the weights of the chosen
    groups: int | None = None  # a token chooses among the experts of `chosen_groups` of them
    chosen_groups: int | None = None
    biased: bool = False
    bias_rate: float = 1e-3
    balance: str = "none"  # the auxiliary loss
    balance_weight: float = 0.0
    z_weight: float = 0.0
    capacity: float | None = None
    drop: str = "probs"
    filled: bool = False  # experts take as many tokens as their capacity
    shared: int | None = None  # hidden size of the shared expert
    shared_gate: bool = False


@dataclass(frozen=True, kw_only=True)
class DeltaNet:
    """Gated Delta Net: recurrent.py; sizes in elements of a head."""

    heads: int  # of values
    value: int
    key_heads: int
    key: int
    taps: int  # slots that the convolution sees


@dataclass(frozen=True, kw_only=True)
class Mamba:
    """Mamba-2: recurrent.py."""

    heads: int
    size: int  # elements of a head
    groups: int
    state: int  # numbers per element
    taps: int = 4  # MambaMixer's own default, which no configuration has


@dataclass(frozen=True, kw_only=True)
class Model:
    """All that the oracle's model depends on."""

    layers: int
    hidden: int
    vocab: int
    heads: int
    groups: int
    head: int  # elements of a head
    ffn: int
    tied: bool = False
    normalization: str = "RMSNorm"
    epsilon: float = 1e-5
    centered_gamma: bool = False
    gated: bool = True
    activation: str = "silu"
    approximate: bool = False  # gelu by tanh, as upstream's fused kernels compute it
    glu_offset: float = 0.0
    clamp: float | None = None
    bias: bool = False  # of linear layers
    qkv_bias: bool = False
    rotary: Rotary | None = field(default_factory=Rotary)
    without_rotary: tuple[bool, ...] = ()  # of each layer, whether it has no rotary positions; empty: all have them
    places: int | None = None  # of the learned position embedding; None: there is none
    qk_norm: bool = False
    window: tuple[int, int] | None = None
    window_skip: int | list[int] | None = None
    causal: bool = True  # an image tower: every patch attends to all
    softmax: str = "vanilla"
    softmax_scale: float | None = None
    latent: Latent | None = None
    experts: Experts | None = None
    expert_layers: tuple[bool, ...] = ()  # of each layer, whether it has experts; empty: all if there are experts
    predictions: int = 0  # multi-token prediction layers
    prediction_weight: float = 0.1
    per_token: bool = True  # whether a loss is divided by the tokens of the step, not of its micro-batch
    stored: torch.dtype = torch.float32  # as ranks hold the initial weights
    adapters: PeftConfig | None = None  # beside linear layers; nothing else trains then
    pattern: str = ""  # of a hybrid model, a letter per layer: features/hybrid/pattern.py
    delta: DeltaNet | None = None
    mamba: Mamba | None = None
    vision: Vision | None = None

    @classmethod
    def read(cls, built: Sequence[BuiltSeen], adapters: PeftConfig | None = None, pattern: str = "") -> Model:
        """From what upstream built, beside which it puts adapters; anything in `uncovered(built)` is ignored.

        `pattern`: of a hybrid model, as the matrix has it; GPTModel in its place has two of its layers in one.
        """
        model, given = _Values(built, "model"), _Values(built, "constructor")
        heads, letters = model["num_attention_heads"], layers_of(pattern)
        layers = len(letters) or model["num_layers"]
        window = model["window_size"]
        experts = _experts(model) if model["num_moe_experts"] else None
        return cls(
            layers=layers,
            hidden=model["hidden_size"],
            vocab=given["vocab_size"],
            heads=heads,
            groups=model["num_query_groups"] or heads,
            head=model["kv_channels"] or model["hidden_size"] // heads,
            ffn=model["ffn_hidden_size"] or 4 * model["hidden_size"],
            tied=given["share_embeddings_and_output_weights"],
            normalization=model["normalization"],
            epsilon=model["layernorm_epsilon"],
            centered_gamma=model["layernorm_zero_centered_gamma"],
            gated=model["gated_linear_unit"],
            activation=model["activation_func"],
            approximate=model["bias_activation_fusion"],
            glu_offset=model["glu_linear_offset"],
            clamp=model["activation_func_clamp_value"],
            bias=model["add_bias_linear"],
            qkv_bias=model["add_bias_linear"] or model["add_qkv_bias"],
            rotary=_rotary(model, given),
            without_rotary=tuple(map(bool, model["no_rope_freq"] or ())),
            places=_places(given),
            qk_norm=model["qk_layernorm"],
            window=tuple(window) if window else None,
            window_skip=model["window_attn_skip_freq"],
            softmax=model["softmax_type"],
            softmax_scale=model["softmax_scale"],
            latent=_latent(model) if model["multi_latent_attention"] else None,
            experts=experts,
            expert_layers=_expert_layers(model["moe_layer_freq"], layers) if experts else (),
            predictions=model["mtp_num_layers"] or 0,
            prediction_weight=model["mtp_loss_scaling_factor"]
            or 0.0,  # null in releases before 0.14 without such layers
            per_token=model["calculate_per_token_loss"],
            stored=torch.bfloat16 if model["params_dtype"] == "torch.bfloat16" else torch.float32,
            adapters=adapters,
            pattern=letters,
            delta=_delta_net(model) if GATED_DELTA in letters else None,
            mamba=_mamba(model) if MAMBA in letters else None,
            vision=_vision(built) if any(seen.of == "tower" for seen in built) else None,
        )

    def has_experts(self, number: int) -> bool:
        """Return whether layer `number` (from 1; prediction layers come after the others) has experts.

        A prediction layer is built like the last layer (Megatron-LM core_v0.19.0, get_gpt_mtp_block_spec).
        """
        if self.pattern:
            return self.pattern[number - 1] == EXPERTS
        if self.experts is None or not self.expert_layers:
            return self.experts is not None
        return self.expert_layers[min(number, self.layers) - 1]

    def mixes(self, number: int) -> bool:
        """Return whether layer `number` (from 1) carries something from token to token."""
        return not self.pattern or self.pattern[number - 1] in MIXERS

    def feeds(self, number: int) -> bool:
        """Return whether layer `number` (from 1) has a feed-forward block or experts."""
        return not self.pattern or self.pattern[number - 1] not in MIXERS

    def turns(self, number: int) -> bool:
        """Whether layer `number` (from 1) has rotary positions (Megatron-LM core_v0.19.0, Attention.forward)."""
        return self.rotary is not None and not (self.without_rotary and self.without_rotary[number - 1])

    def is_windowed(self, number: int) -> bool:
        """Return whether layer `number` (from 1) has the window (Megatron-LM core_v0.19.0,
        is_layer_window_attention).
        """
        if isinstance(self.window_skip, list):
            return bool(self.window_skip[number - 1])
        # Every n-th layer attends to everything: the number says which layers skip the window, not which have it.
        return self.window_skip is None or number % self.window_skip != 0


@dataclass(frozen=True, kw_only=True)
class Vision:
    """Images: vision.py."""

    tower: Model  # its layers
    patch: tuple[int, int, int, int]  # channels, frames, rows and columns of a patch
    merge: int  # patches of a side that become one token
    places: int  # of the learned position embedding, a square
    out: int  # hidden size of the language model
    deepstack: tuple[int, ...]  # layers, from 0, whose features are added to outputs of the language model
    token: int  # id of the tokens whose place features take


def _vision(built: Sequence[BuiltSeen]) -> Vision:
    given, model = _Values(built, "tower"), _Values(built, "model")
    heads, name = given["num_attention_heads"], given["activation_func"]
    return Vision(
        tower=Model(
            layers=given["num_layers"],
            hidden=given["hidden_size"],
            vocab=0,
            heads=heads,
            groups=given["num_query_groups"] or heads,
            head=given["kv_channels"] or given["hidden_size"] // heads,
            ffn=given["ffn_hidden_size"] or 4 * given["hidden_size"],
            normalization=given["normalization"],
            epsilon=given["layernorm_epsilon"],
            centered_gamma=given["layernorm_zero_centered_gamma"],
            gated=False,
            activation=name.partition("(")[0],
            approximate="tanh" in name,
            bias=given["add_bias_linear"],
            qkv_bias=given["add_bias_linear"] or given["add_qkv_bias"],
            rotary=Rotary(planar=True),
            causal=False,
        ),
        patch=(given["in_channels"], given["temporal_patch_size"], given["patch_size"], given["patch_size"]),
        merge=given["spatial_merge_size"],
        places=given["num_position_embeddings"],
        out=given["out_hidden_size"],
        deepstack=tuple(given["deepstack_visual_indexes"]),
        token=model["image_token_id"],
    )


def _places(given: _Values) -> int | None:
    """Return the rows of the learned position embedding; None without one, and where no constructor is recorded."""
    return given["max_sequence_length"] or None if given["position_embedding_type"] == "learned_absolute" else None


def _rotary(model: _Values, given: _Values) -> Rotary | None:
    kind = given["position_embedding_type"]
    if kind not in ("rope", "mrope"):
        return None
    return Rotary(
        base=given["rotary_base"],
        percent=given["rotary_percent"],
        interleaved=model["rotary_interleaved"],
        interpolation=given["seq_len_interpolation_factor"] or 1.0,
        llama_factor=given["rope_scaling_factor"] if given["rope_scaling"] else None,
        sections=tuple(model["mrope_section"]) if kind == "mrope" else None,
    )


def _latent(model: _Values) -> Latent:
    yarn = Yarn(
        factor=model["rotary_scaling_factor"],
        context=model["original_max_position_embeddings"],
        fast=model["beta_fast"],
        slow=model["beta_slow"],
        mscale=model["mscale"],
        mscale_all=model["mscale_all_dim"],
    )
    still, turned = model["qk_head_dim"], model["qk_pos_emb_head_dim"]
    is_yarn = model["rope_type"] == "yarn"
    return Latent(
        query_rank=model["q_lora_rank"],
        rank=model["kv_lora_rank"],
        still=still,
        turned=turned,
        value=model["v_head_dim"],
        scale=yarn.temperature(yarn.mscale_all) ** 2 / math.sqrt(still + turned),  # also without YaRN
        rotary=Rotary(
            base=model["rotary_base"],
            # Upstream's MLA passes `rotary_percent` to RotaryEmbedding only; its YarnRotaryEmbedding turns all
            # elements.
            percent=1.0 if is_yarn else model["rotary_percent"],
            yarn=yarn if is_yarn else None,
            pairs_in=True,
        ),
    )


def _delta_net(model: _Values) -> DeltaNet:
    return DeltaNet(
        heads=model["linear_num_value_heads"],
        value=model["linear_value_head_dim"],
        key_heads=model["linear_num_key_heads"],
        key=model["linear_key_head_dim"],
        taps=model["linear_conv_kernel_dim"],
    )


def _mamba(model: _Values) -> Mamba:
    size = model["mamba_head_dim"]
    return Mamba(
        # Mamba-2 expands the hidden size by 2 where heads are not given.
        heads=model["mamba_num_heads"] or 2 * model["hidden_size"] // size,
        size=size,
        groups=model["mamba_num_groups"],
        state=model["mamba_state_dim"],
    )


def _experts(model: _Values) -> Experts:
    return Experts(
        count=model["num_moe_experts"],
        chosen=model["moe_router_topk"],
        ffn=model["moe_ffn_hidden_size"] or model["ffn_hidden_size"],
        score=model["moe_router_score_function"],
        before=model["moe_router_pre_softmax"],
        factor=model["moe_router_topk_scaling_factor"] or 1.0,
        groups=model["moe_router_num_groups"],
        chosen_groups=model["moe_router_group_topk"],
        biased=model["moe_router_enable_expert_bias"],
        bias_rate=model["moe_router_bias_update_rate"],
        # Its default is "aux_loss", which with a coefficient of 0 computes nothing.
        balance=model["moe_router_load_balancing_type"] if model["moe_aux_loss_coeff"] else "none",
        balance_weight=model["moe_aux_loss_coeff"],
        z_weight=model["moe_z_loss_coeff"] or 0.0,
        capacity=model["moe_expert_capacity_factor"],
        drop=model["moe_token_drop_policy"],
        filled=model["moe_pad_expert_input_to_capacity"],
        shared=model["moe_shared_expert_intermediate_size"],
        shared_gate=model["moe_shared_expert_gate"],
    )


def _expert_layers(frequency: int | list[int], layers: int) -> tuple[bool, ...]:
    """Return which layers have experts. A number n: every n-th, from the first; a list: 1 for a layer with experts."""
    if isinstance(frequency, list):
        return tuple(map(bool, frequency))
    return tuple(number % frequency == 0 for number in range(layers))


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Adam: optimizer.py."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decoupled: bool = True
    clip: float = 1.0  # 0: no clipping

    @classmethod
    def read(cls, built: Sequence[BuiltSeen]) -> Optimizer:
        """From what upstream built; rates and decays are those of the cell's Schedule."""
        given = _Values(built, "optimizer")
        return cls(
            beta1=given["adam_beta1"],
            beta2=given["adam_beta2"],
            epsilon=given["adam_eps"],
            decoupled=given["decoupled_weight_decay"],
            clip=given["clip_grad"],
        )
