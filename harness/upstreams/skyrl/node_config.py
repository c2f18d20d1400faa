"""A cell as SkyRL's TrainerConfig. What is not named here has upstream's default."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from harness.core.cell.axis_values import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.cell.model import ModelConfig
from harness.oracle.drawing import END, PADDING
from harness.probe.model.gpt import DTYPES, upstream_fields
from harness.runtime.device.placement import Device
from harness.upstreams.node_tokenizer import write_tokenizer


# The model folder that SkyRL's worker reads: a Hugging Face configuration, weights, and a tokenizer of token ids.
#
# The weights are drawn by transformers: the model gets those of the cell once it is built.
def write_files(folder: Path, config: CellConfig) -> None:
    """Write the files into a new folder. On one rank."""
    upstream: Any = importlib.import_module("transformers")
    family = family_of(config.model)
    folder.mkdir(parents=True)
    write_tokenizer(folder, config.model.vocab)
    configuration = getattr(upstream, f"{family}Config")(**fields(config))
    model = getattr(upstream, f"{family}ForCausalLM")(configuration)
    model.to(DTYPES[config.dtype]).save_pretrained(folder)


def family_of(model: ModelConfig) -> str:
    """Return the models of Hugging Face, by the prefix of their classes, that have what the cell's has.

    All have RMSNorm, SwiGLU and rotary positions; Llama no biases, Qwen 2 those of queries, keys and values, Qwen 3
    norms of queries and keys.
    """
    return "Qwen3" if model.qk_layernorm else "Qwen2" if model.qkv_bias else "Llama"


_LLAMA = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # Megatron's too


def fields(config: CellConfig) -> dict[str, Any]:
    """Return the cell's model as fields of a configuration of Hugging Face."""
    model = config.model
    rope = {"rope_type": "default", "rope_theta": float(model.rope_base)}
    if model.rope_scaling:
        rope |= {"rope_type": "llama3", "factor": model.rope_scaling_factor, **_LLAMA}
    return {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        # A row has one token more than labels.
        "max_position_embeddings": config.train.seq_length + 1,
        "rope_parameters": rope,
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tied,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": PADDING,
    }


# What the probe sets for its own loop, but SkyRL's worker sets itself.
_OF_PROBE = (
    "init_method",
    "output_layer_init_method",
    "embedding_init_method",
    "use_cpu_initialization",
    "moe_token_dispatcher_type",
    "variable_seq_lengths",
    "calculate_per_token_loss",  # SkyRL's collator scales the loss mask instead, to the same mean over all tokens
)
_NO_RECOMPUTE = {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}


def trainer_config(config: CellConfig, device: Device) -> Any:
    """Return the configuration of SkyRL's policy worker."""
    upstream: Any = importlib.import_module("skyrl.train.config.config")
    configuration = upstream.TrainerConfig(
        strategy="megatron",
        seed=config.train.seed,
        bf16=config.dtype == "bf16",
        flash_attn=False,  # with Transformer Engine the cell's kind of attention decides
        gradient_checkpointing=config.recompute != "none",
        micro_train_batch_size_per_gpu=config.micro_batch_size,
        remove_microbatch_padding=config.options.remove_microbatch_padding,
        use_expandable_segments=device.kind == "cuda",
    )
    configuration.algorithm.temperature = 1.0
    for name, value in _optimizer(config).items():
        setattr(configuration.policy.optimizer_config, name, value)
    megatron, overlap = configuration.policy.megatron_config, config.distributed_optimizer == "overlap"
    layout = config.layout
    megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size = layout.tp, layout.pp
    megatron.context_parallel_size = layout.cp
    megatron.ddp_config.overlap_grad_reduce = megatron.ddp_config.overlap_param_gather = overlap
    megatron.transformer_config_kwargs |= _model(config)
    megatron.optimizer_config_kwargs |= _precision(config) | {"overlap_param_gather": overlap}
    return configuration


def _model(config: CellConfig) -> dict[str, Any]:
    """Return Transformer Engine's layers, upstream's default, for its kinds of attention.

    Else the local ones.
    """
    options = {name: value for name, value in upstream_fields(config).items() if name not in _OF_PROBE}
    if config.attention not in TE_KINDS:
        provider: Any = importlib.import_module("megatron.bridge.models.gpt_provider")
        options["transformer_layer_spec"] = provider.local_layer_spec
    return {"apply_rope_fusion": False, "cross_entropy_loss_fusion": False, **_NO_RECOMPUTE, **options}


def _optimizer(config: CellConfig) -> dict[str, Any]:
    """Set the optimizer as the harness's own loop does: clipping only if the cell asks for it."""
    numbers = config.args.numbers()
    options: dict[str, Any] = {"lr": config.train.lr, "num_warmup_steps": config.train.lr_warmup_iters}
    options |= {"max_grad_norm": numbers.get("clip_grad", 0.0)}
    if "weight_decay" in numbers:
        options["weight_decay"] = numbers["weight_decay"]
    return options | {"adam_betas": [numbers.get("adam_beta1", 0.9), numbers.get("adam_beta2", 0.999)]}


def _precision(config: CellConfig) -> dict[str, Any]:
    """Return what SkyRL takes for bf16 unless told otherwise; and Adam's epsilon, for which it has no field."""
    names = upstream_fields(config)
    options = {"bf16": names["bf16"], "params_dtype": names["params_dtype"]}
    numbers = config.args.numbers()
    return options | ({"adam_eps": numbers["adam_eps"]} if "adam_eps" in numbers else {})
