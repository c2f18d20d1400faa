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
    "megatron-cp-seq-length": ForbiddenCase(r"multiple of 2 \* context-parallel-size", "Megatron-LM validate_args"),
}
