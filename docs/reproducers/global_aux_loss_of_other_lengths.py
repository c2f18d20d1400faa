"""Megatron-LM, 0.17 to main of 2026-08: `global_aux_loss` depends on which replica has the longer micro-batch.

    PYTHONPATH=Megatron-LM python global_aux_loss_of_other_lengths.py

The loss divides by the square of the number of tokens of all replicas. get_tokens_per_expert_and_token_count takes its
own tokens times the number of ranks for that number, though it has just summed the tokens of every expert over all
ranks. Packed micro-batches of two replicas have different lengths: with 8 and 56 tokens one replica divides by 16^2,
the other by 112^2, and neither by 64^2. Exit code 1 if so.
"""

from __future__ import annotations

import sys
from unittest import mock

import torch
from megatron.core.transformer.moe import moe_utils

EXPERTS, LENGTHS = 4, (8, 56)


class Group:
    """A process group of one rank per replica."""

    def size(self) -> int:
        return len(LENGTHS)


def main() -> int:
    maps = [torch.eye(EXPERTS, dtype=torch.bool).repeat(length // EXPERTS, 1) for length in LENGTHS]
    total = torch.stack([one.sum(0) for one in maps]).sum(0)
    found = []
    for one in maps:
        with mock.patch.object(moe_utils, "reduce_from_tensor_model_parallel_region", lambda *args: total):
            _, _, tokens = moe_utils.get_tokens_per_expert_and_token_count(one, Group(), topk=1)
        found.append(int(tokens))
    print(f"replicas with {LENGTHS} tokens take {tuple(found)} for the number of all tokens, {sum(LENGTHS)}")
    return int(set(found) != {sum(LENGTHS)})


if __name__ == "__main__":
    sys.exit(main())
