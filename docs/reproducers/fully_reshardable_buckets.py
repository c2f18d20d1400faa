"""Megatron-LM before 32a03b77c5 (pull request 5077), in 0.19.2 not yet: a checkpoint of whole tensors holds wrong ones.

    PYTHONPATH=Megatron-LM python fully_reshardable_buckets.py

With `--dist-ckpt-optim-fully-reshardable`, `get_parameter_state_dp_zero` joins the buckets of a gradient buffer without
the padding at their ends. `sharded_param_state_fully_reshardable` takes parameters from the result by
their places in the buffer, which has this padding. So every parameter after the first bucket gets the numbers of its
neighbours. Exit code 1 if it does.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer, Range

SIZE, PADDED = (
    64,
    128,
)  # elements of a parameter, and of its bucket: distributed optimizers pad them to multiples of 128


def main() -> int:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parameters = [torch.nn.Parameter(torch.full((SIZE,), value)) for value in (1.0, 2.0)]
    place, every = Range(0, SIZE), range(len(parameters))
    buckets = [SimpleNamespace(grad_data=torch.zeros(PADDED), numel_unpadded=SIZE) for _ in every]
    starts = {item: (number * PADDED, number * PADDED + SIZE, number) for number, item in enumerate(parameters)}
    ranges = [{"param_map": {item: {"gbuf_local": place, "param": place}}} for item in parameters]
    size, padded = SIZE * len(parameters), PADDED * len(parameters)
    buffer = SimpleNamespace(numel_unpadded=size, numel=padded, buckets=buckets, param_index_map=starts)
    optimizer = SimpleNamespace(
        data_parallel_group=dist.group.WORLD,
        data_parallel_group_gloo=dist.group.WORLD,
        gbuf_ranges=[{torch.float32: ranges}],
        buffers=[buffer],
        optimizer_state_keys=(),
        _get_main_param_and_optimizer_states=lambda item: {"param": item},
    )
    optimizer.get_parameter_state_dp_zero = partial(DistributedOptimizer.get_parameter_state_dp_zero, optimizer)
    model = {str(number): ShardedTensor.from_rank_offsets(str(number), item) for number, item in enumerate(parameters)}
    metadata = {"distrib_optim_fully_reshardable_mem_efficient": True}  # gathered by gloo
    saved = DistributedOptimizer.sharded_param_state_fully_reshardable(optimizer, model, metadata=metadata)
    found = [float(saved[number]["param"].data.mean()) for number in every]
    print(f"parameters whose mean is 1 and 2 are saved with mean {found[0]:g} and {found[1]:g}")
    return int(found != [1.0, 2.0])


if __name__ == "__main__":
    sys.exit(main())
