"""Packing that parts of Megatron-Bridge and Megatron-LM refuse at run time, each by upstream's own function.

| case | refused by | releases |
|---|---|---|
| offsets of two rows | Megatron-Bridge training.gpt_step | 0.4 to 0.6 |
| virtual tokens | GPTSFTPackedDataset: data.datasets.sft up to 0.5, data.packing.gpt_sft in 0.6 | 0.4 to 0.6 |
| packing in a step that needs it in the collator | training.vlm_step.forward_step | 0.6 |
| packing in a collator whose step packs itself | models.qwen_vl.qwen3_vl_step | 0.6 |
| packing that a step does not have | models.qwen_omni.qwen3_omni_step | 0.6 |
| packing that a collator does not have | models.nemotron_vl.data.collate_fn, models.qwen_omni.data.collate_fn | 0.6 |
| packed attention without Transformer Engine | megatron.core.transformer.dot_product_attention | 0.14 to 0.19 |
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from harness.node.data_paths.bridge.step import CalledModel, state_of

_OFFSETS = torch.tensor([[0, 4, 8]], dtype=torch.int32)  # of one row of two documents


def rows_of_offsets(forbidden: bool, folder: Path) -> None:
    """Split packed rows over context-parallel ranks: forbidden with the offsets of two rows."""
    split = importlib.import_module("megatron.bridge.training.gpt_step")._partition_packed_batch_for_cp
    by_group = "cp_group" in inspect.signature(split).parameters  # from 0.6
    offsets = _OFFSETS.repeat(2, 1) if forbidden else _OFFSETS
    batch = {"tokens": torch.zeros(1, 8, dtype=torch.int64), "cu_seqlens": offsets}
    split(batch, parallel_state.get_context_parallel_group() if by_group else 1)


def virtual_tokens(forbidden: bool, folder: Path) -> None:
    """Open a packed file for prompt tuning, which puts virtual tokens before each document."""
    from harness.node.data_paths.bridge.offline import Numbers, write_packed_row

    try:
        from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset
    except ModuleNotFoundError:  # up to 0.5
        from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset
    rows = folder / "virtual.npy"
    write_packed_row(rows)
    GPTSFTPackedDataset(
        str(rows),
        Numbers(),
        max_seq_length=64,
        label_key="output",
        prompt_template="{input} {output}",
        truncation_field="input",
        virtual_tokens=4 if forbidden else 0,
    )


def packing_in_vlm_step(forbidden: bool, folder: Path) -> None:
    """A training step that takes rows packed by the collator: forbidden if the collator leaves packing to the step."""
    _reads("megatron.bridge.training.vlm_step", enable_in_batch_packing=True, defer_in_batch_packing_to_step=forbidden)


def packing_in_omni_step(forbidden: bool, folder: Path) -> None:
    """A training step that takes unpacked rows: forbidden with in-batch packing."""
    tokens = torch.ones(2, 4, dtype=torch.int64)
    batch = {"input_ids": tokens, "labels": tokens, "loss_mask": tokens.float(), "position_ids": tokens}
    _reads("megatron.bridge.models.qwen_omni.qwen3_omni_step", batch, enable_in_batch_packing=forbidden)


def packed_for_qwen3_vl_step(forbidden: bool, folder: Path) -> None:
    """Read a batch for a training step that packs itself: forbidden with a packed one."""
    step = importlib.import_module("megatron.bridge.models.qwen_vl.qwen3_vl_step")
    batch = {"tokens": torch.ones(1, 8, dtype=torch.int64)} | ({"cu_seqlens_q": _OFFSETS} if forbidden else {})
    step.get_batch_from_iterator(iter([batch]), is_first_pp_stage=True, is_last_pp_stage=True)


def collated(module: str, name: str) -> Callable[[bool, Path], None]:
    """Pack rows in a collator: allowed for text, forbidden in that of a model that opts out."""

    def validate(forbidden: bool, folder: Path) -> None:
        if forbidden:
            example = {"conversation": [{"role": "user", "content": [{"type": "text", "text": "1"}]}]}
            getattr(importlib.import_module(module), name)([example, example], None, enable_in_batch_packing=True)
            return
        from megatron.bridge.data.collators.sequence import prepare_sequence_batch

        tokens = torch.ones(2, 4, dtype=torch.int64)
        batch: dict[str, Any] = {"tokens": tokens, "position_ids": torch.arange(4).expand(2, 4).clone()}
        prepare_sequence_batch(batch, sequence_length=64, enable_in_batch_packing=True)

    return validate


def local_attention(forbidden: bool, folder: Path) -> None:
    """Megatron's attention without Transformer Engine: forbidden with packed rows."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, masked_softmax_fusion=False, attention_dropout=0.0
    )
    attend = DotProductAttention(config, 1, AttnMaskType.causal, "self")
    states = torch.ones(8, 1, 2, 4)  # [slots, rows, heads, size of a head]
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=_OFFSETS[0], cu_seqlens_kv=_OFFSETS[0])
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
    attend(states, states, states, mask, AttnMaskType.causal, packed_seq_params=params if forbidden else None)


def _reads(module: str, *batches: dict[str, Tensor], **dataset: Any) -> None:
    """Call the forward_step of a module, which is over when it asks for one more batch, or has called the model."""
    step: Any = importlib.import_module(module)
    sizes = SimpleNamespace(
        seq_length=4, sequence_parallel=False, mtp_num_layers=None, virtual_pipeline_model_parallel_size=None
    )
    with suppress(StopIteration):
        step.forward_step(state_of(SimpleNamespace(**dataset), sizes), iter(batches), CalledModel(sizes, None))
