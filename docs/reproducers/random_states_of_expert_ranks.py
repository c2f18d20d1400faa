"""Megatron-LM, up to main of 2026-08: a checkpoint keeps the random state of one expert-parallel rank for all.

    PYTHONPATH=Megatron-LM python random_states_of_expert_ranks.py

model_parallel_cuda_manual_seed gives each expert-parallel rank a generator of its own, "expert-parallel-rng".
checkpointing.get_rng_state names a rank's states by its pipeline and tensor rank alone, and counts ranks that differ in
data or expert parallelism as copies, of which only the first is written. After a resume all expert ranks go on from the
generator of the first, so dropout in their experts is the same. Exit code 1 if two ranks with different states have one
name.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.training import checkpointing


def saved_by(expert_rank: int) -> Any:
    """What an expert-parallel rank of two puts into a checkpoint."""
    tracker = tensor_parallel.get_cuda_rng_tracker()
    # The seed of model_parallel_cuda_manual_seed for pipeline and expert tensor rank 0.
    tracker.states_ = {"expert-parallel-rng": torch.tensor([1234 + 1024 + 100 * expert_rank])}
    group: Any = dist.group.WORLD
    return checkpointing.get_rng_state(
        "torch_dist", group, group, dp_cp_group=SimpleNamespace(size=lambda: 2, rank=lambda: expert_rank)
    )


def main() -> int:
    """Compare the names and the states of two expert-parallel ranks."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.cuda.get_rng_state = torch.get_rng_state  # type: ignore[assignment]  # without a GPU
    checkpointing.get_args = lambda: SimpleNamespace(data_parallel_random_init=False)
    first, second = saved_by(0), saved_by(1)
    states = [int(rank.data[0]["rng_tracker_states"]["expert-parallel-rng"]) for rank in (first, second)]
    print(f"states {states} of expert-parallel ranks 0 and 1 are saved as {first.unique_key} and {second.unique_key}")
    print(f"the copy that is written is that with replica_id 0; theirs are {first.replica_id} and {second.replica_id}")
    dist.destroy_process_group()
    return int(first.unique_key == second.unique_key and states[0] != states[1])


if __name__ == "__main__":
    sys.exit(main())
