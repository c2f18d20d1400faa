"""Megatron-LM, from the first `--sft` to main of 2026-08: the evaluation loss depends on the context-parallel size.

    PYTHONPATH=Megatron-LM python sft_evaluation_under_cp.py

With --sft, megatron.training.training.evaluate divides the loss of a micro-batch by its tokens on each rank, then
averages over dp x cp. A rank of cp holds a share of a micro-batch, so this is the mean of the means of shares, which
have different numbers of tokens when prompts and padding are left out: the same model and data get another loss.
Training reports the sum of losses over the sum of tokens. Here one micro-batch has losses of 2 on 30 tokens and of 5 on
10; with cp 2, one rank has the former and the other the latter. Exit code 1 if the two losses differ.
"""

from __future__ import annotations

import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.training import training

SHARES = [(60.0, 30.0), (50.0, 10.0)]  # loss sum, tokens
_tensor = torch.tensor


def evaluated(shares: list[tuple[float, float]]) -> float:
    """The loss that upstream's evaluate returns on this rank for the shares that it computes of a micro-batch."""
    loss, tokens = (sum(part) for part in zip(*shares))
    args = SimpleNamespace(
        sft=True,
        eval_global_batch_size=1,
        eval_micro_batch_size=1,
        data_parallel_size=1,
        gtp_weight_remat_size=1,
        cuda_graph_impl="none",
        moe_expert_rank_capacity_factor=None,
        eval_iters=1,
        seq_length=64,
        decoder_seq_length=None,
        empty_unused_memory_level=0,
        exit_duration_in_mins=None,
        consumed_valid_samples=0,
    )
    groups = SimpleNamespace(pp=None, dp_cp=dist.group.WORLD)
    timer = SimpleNamespace(start=lambda **_: None, stop=lambda: None)

    def timers(*_: Any, **__: Any) -> Any:
        return timer

    timers.log = lambda *_: None  # type: ignore[attr-defined]
    wrapped = {
        "get_args": lambda: args,
        "get_timers": lambda: timers,
        "get_attr_wrapped_model": lambda *_: groups,
        "is_pp_last_stage": lambda _: True,
        "get_forward_backward_func": lambda **_: lambda **_: [{"lm loss": _tensor([loss, tokens])}],
    }
    for name, function in wrapped.items():
        setattr(training, name, function)
    model = SimpleNamespace(eval=lambda: None, train=lambda: None)
    config = SimpleNamespace(timers=None)
    means, *_ = training.evaluate(None, None, [model], None, config)
    return float(means["lm loss"])


def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
    """torch.tensor without a GPU."""
    return _tensor(*args, **{name: value for name, value in kwargs.items() if name != "device"})


def main() -> int:
    torch.tensor = on_cpu  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        rank = int(os.fork() == 0)  # two ranks
        store = dist.FileStore(f"{folder}/store", 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        whole, shared = evaluated(SHARES), evaluated([SHARES[rank]])
        if rank:
            os._exit(0)
        os.wait()
    print(f"evaluation loss: {whole:.4f} with cp 1, {shared:.4f} with cp 2")
    return 0 if whole == shared else 1


if __name__ == "__main__":
    sys.exit(main())
