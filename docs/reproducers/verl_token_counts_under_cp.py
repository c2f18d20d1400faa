"""verl 0.9.1: with context parallelism, gradients are divided by too few tokens.

    python verl_token_counts_under_cp.py

With calculate_per_token_loss, which Megatron-Bridge sets with context parallelism, a micro-batch returns its loss times
the tokens of the step, and its number of tokens, by whose sum over all ranks Megatron divides gradients. Each context
parallel rank returns the tokens of the micro-batch divided by their number and rounded down, so the sum is too small
unless every micro-batch is a multiple of it. Here two micro-batches hold 7 and 9 tokens, for two ranks. Exit code 1 if
the numbers of both ranks do not add up to 16.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from verl.utils.tensordict_utils import get_tensordict
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

RANKS = 2
LENGTHS = ((3, 4), (4, 5))  # of the rollouts of each micro-batch


def counted(engine: Any, lengths: tuple[int, ...]) -> int:
    """The number of tokens that a rank returns for a micro-batch."""
    tokens = torch.nested.as_nested_tensor([torch.ones(length) for length in lengths], layout=torch.jagged)
    settings = {"num_micro_batch": len(LENGTHS), "dp_size": 1, "routed_num_tokens": sum(map(sum, LENGTHS))}
    returned = engine.postprocess_micro_batch_func(
        {}, get_tensordict({"input_ids": tokens}, settings), False, lambda **_: (torch.tensor(1.0), {})
    )
    return int(returned[1])


def main() -> int:
    engine = MegatronEngineWithLMHead.__new__(MegatronEngineWithLMHead)
    engine.get_data_parallel_group = lambda: None
    engine.tf_config = SimpleNamespace(calculate_per_token_loss=True)
    engine.engine_config = SimpleNamespace(
        dynamic_context_parallel=False, use_remove_padding=True, context_parallel_size=RANKS
    )
    found, right = RANKS * sum(counted(engine, lengths) for lengths in LENGTHS), sum(map(sum, LENGTHS))
    print(f"tokens that the ranks return: {found}, expected {right}; gradients are too large by {right / found:.3f}")
    return int(found != right)


if __name__ == "__main__":
    sys.exit(main())
