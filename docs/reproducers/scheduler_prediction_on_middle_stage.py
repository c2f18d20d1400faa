"""Megatron-LM, main of 2026-08: prediction layers on a middle pipeline stage get no batch from the packing scheduler.

    PYTHONPATH=Megatron-LM python scheduler_prediction_on_middle_stage.py

A layout of the pipeline may put multi-token prediction on a stage that is neither the first nor the last. The scheduler
gives such stages the offsets of documents only (broadcast_to_pp_group), but with `mtp_on_this_rank`
get_batch_on_this_rank_for_sequence_packing takes tokens and labels from the batch. The review of pull request 2924
found it; branch dev of 2026-08 reads the data on every stage, and keeps tokens and labels on those that predict. Exit
code 1 if the batch cannot be read.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.datasets import data_schedule


def main() -> int:
    torch.cuda.current_device = lambda: torch.device("cpu")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    offsets = torch.tensor([0, 5, 8], dtype=torch.int32)
    metadata = {"cu_seqlens": offsets, "cu_seqlens_padded": offsets, "max_seqlen": torch.tensor(5, dtype=torch.int32)}
    middle = SimpleNamespace(rank=lambda: 1, size=lambda: 3)
    groups = SimpleNamespace(tp=dist.group.WORLD, cp=dist.group.WORLD, pp=middle)
    try:
        data_schedule.get_batch_on_this_rank_for_sequence_packing(
            iter([metadata]), mtp_on_this_rank=True, pg_collection=groups
        )
    except (AssertionError, KeyError) as error:
        print(f"on a middle stage that predicts, the batch raises {type(error).__name__}: {error}")
        return 1
    finally:
        dist.destroy_process_group()
    print("the batch is read")
    return 0


if __name__ == "__main__":
    sys.exit(main())
