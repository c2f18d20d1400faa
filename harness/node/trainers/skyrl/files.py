"""The model folder that SkyRL's worker reads: a Hugging Face configuration, weights, and a tokenizer of token ids.

The weights are drawn by transformers: the model gets those of the cell once it is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.cell.config import CellConfig
from harness.node.probe.model.gpt import DTYPES
from harness.node.trainers.tokenizer import write_tokenizer
from harness.oracle.drawing import END, PADDING

_NORM_EPSILON = 1e-5  # Megatron's default, which the harness's own model has


def write_files(folder: Path, config: CellConfig) -> None:
    """Write the files into a new folder. On one rank."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    write_tokenizer(folder, config.model.vocab)
    LlamaForCausalLM(LlamaConfig(**fields(config))).to(DTYPES[config.dtype]).save_pretrained(folder)


def fields(config: CellConfig) -> dict[str, Any]:
    """The cell's model as fields of LlamaConfig: RMSNorm, SwiGLU, rotary positions, no biases."""
    model = config.model
    return {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        "max_position_embeddings": config.train.seq_length + 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(model.rope_base)},
        "rms_norm_eps": _NORM_EPSILON,
        "tie_word_embeddings": model.tied,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": PADDING,
    }
