"""The combinations that upstream's validators must refuse: values of the axis `forbidden`. Pure.

How a rank passes a combination to its validator: harness/node/data_paths/rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_CONFIG = "Megatron-Bridge ConfigContainer.validate"


@dataclass(frozen=True)
class ForbiddenCase:
    """A message that names the violated rule matches `pattern`."""

    pattern: str
    validator: str = _CONFIG

    def named_in(self, message: str) -> bool:
        return re.search(self.pattern, message, re.IGNORECASE | re.DOTALL) is not None


FORBIDDEN_CASES: Mapping[str, ForbiddenCase] = {
    "offline-micro-batch-2": ForbiddenCase(r"micro batch size should be 1"),
    "in-batch-micro-batch-1": ForbiddenCase(r"micro_batch_size should be greater than 1"),
    "cp-seq-length": ForbiddenCase(r"divisible by 2 \* context parallel"),
    "cp-mean-loss": ForbiddenCase(r"calculate_per_token_loss must be True"),
    "cp-average-in-collective": ForbiddenCase(r"average_in_collective must be False|average in collective"),
    "pad-cu-seqlens-free-rows": ForbiddenCase(r"pad_cu_seqlens.*pad_to_max_length"),
    "offline-and-in-batch": ForbiddenCase(r"mutually exclusive"),
    "pad-cu-seqlens-no-metadata": ForbiddenCase(
        r"metadata json file is required", "Megatron-Bridge GPTSFTPackedDataset"
    ),
    "in-batch-opt-out": ForbiddenCase(r"does not support in-batch packing", "Megatron-Bridge qwen3_omni_collate_fn"),
    "in-batch-nemotron-vl": ForbiddenCase(
        r"does not support in-batch packing", "Megatron-Bridge nemotron_nano_v2_vl_collate_fn"
    ),
    "in-batch-qwen3-omni-step": ForbiddenCase(
        r"packed sequence support is not implemented", "Megatron-Bridge qwen3_omni_step.forward_step"
    ),
    "collated-qwen3-vl-step": ForbiddenCase(
        r"does not support collate-time in-batch packing", "Megatron-Bridge qwen3_vl_step.get_batch_from_iterator"
    ),
    "deferred-vlm-step": ForbiddenCase(
        r"requires collate-time in-batch packing", "Megatron-Bridge vlm_step.forward_step"
    ),
    "offsets-of-two-rows": ForbiddenCase(r"expect micro-batch size 1", "Megatron-Bridge gpt_step"),
    "offline-virtual-tokens": ForbiddenCase(
        r"P-Tuning with packed sequence is not supported", "Megatron-Bridge GPTSFTPackedDataset"
    ),
    "offline-graphs-free-rows": ForbiddenCase(r"CUDA graphs requires.*pad_to_max_length"),
    "offline-graphs-free-offsets": ForbiddenCase(r"CUDA graphs require.*pad_cu_seqlens"),
    "megatron-local-attention": ForbiddenCase(
        r"Packed sequence is not supported by DotProductAttention", "Megatron-LM DotProductAttention"
    ),
    "megatron-cp-seq-length": ForbiddenCase(r"multiple of 2 \* context-parallel-size", "Megatron-LM validate_args"),
    "megatron-iterator-on-every-rank": ForbiddenCase(
        r"only tp rank 0 .*should have data_iterator", "Megatron-LM wrap_data_iterator"
    ),
}
