"""Megatron-LM, branch dev of 2026-08: the packing scheduler counts padding, so FLOPs of a step are too many.

    PYTHONPATH=Megatron-LM python scheduler_counts_padding.py

With --sequence-packing-scheduler, train_step passes the sums that wrap_data_iterator returns to
num_floating_point_operations, whose docstring wants lengths without padding, and its comment says that the scheduler
"computed these from the real sequence lengths before CP padding". DpBalancedScheduler.run sums `padded_seq_len`
(get_batch_and_global_seqlens). Documents are padded to a multiple of 2 x cp x tp, so short ones count for much. Here
documents have 3 and 5 tokens, padded to 8. Exit code 1 if their padding is counted.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.datasets import data_schedule

LENGTHS, PADDED = (3, 5), 8


def sample(length: int) -> dict[str, torch.Tensor]:
    """A document as VarlenDataset returns it."""
    ids = torch.zeros(PADDED, dtype=torch.int64)
    sizes = {"original_seq_len": torch.tensor([length]), "padded_seq_len": torch.tensor([PADDED])}
    return {"tokens": ids, "labels": ids, "loss_mask": ids.float(), "position_ids": ids, **sizes}


def counted() -> tuple[float, float]:
    """The sums of lengths and of squared lengths that the scheduler returns for one rank."""
    config = SimpleNamespace(
        sequence_packing_scheduler="dp_balanced",
        max_seqlen_per_dp_cp_rank=64,
        virtual_pipeline_model_parallel_size=None,
        microbatch_group_size_per_vp_stage=1,
        thd_max_packed_sequences=None,
    )
    group: Any = dist.group.WORLD
    groups = SimpleNamespace(dp_cp=group, dp=group, tp=group, pp=group)
    documents = iter([sample(length) for length in LENGTHS])
    _, _, tokens, squares = data_schedule.wrap_data_iterator(documents, config, len(LENGTHS), groups)
    return tokens, squares


def main() -> int:
    torch.cuda.current_device = lambda: torch.device("cpu")  # the scheduler asks for a GPU
    torch.Tensor.cuda = lambda self, *_, **__: self
    data_schedule.mtp_on_this_rank = lambda *_, **__: False
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    tokens, squares = counted()
    dist.destroy_process_group()
    right = sum(LENGTHS), sum(length**2 for length in LENGTHS)
    print(f"documents of {LENGTHS} tokens: sums {right[0]} and {right[1]}, counted {tokens:g} and {squares:g}")
    return 0 if (tokens, squares) == right else 1


if __name__ == "__main__":
    sys.exit(main())
