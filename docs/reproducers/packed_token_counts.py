"""Megatron-LM, from core_v0.18.0 to main of 2026-08: packed tokens, and so FLOPs, are counted more than once.

    PYTHONPATH=Megatron-LM python packed_token_counts.py

forward_step of pretrain_gpt.py adds the lengths of packed documents to a sum that megatron.training.training reads
after every step (consume_seqlen_stats_in_iteration) and divides by tp x cp x pp. But forward_step runs once per model
chunk, so with interleaved stages every token counts once for each chunk of a rank. It also runs in evaluations, which
do not reset the sum, so the step after an evaluation has its tokens too. The FLOPs per step, the throughput and the
total that checkpoints hold come from this sum. Here a micro-batch has documents of 30 and 10 tokens. Exit code 1 if it
is counted otherwise. This file runs with main of 2026-08.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pretrain_gpt
import torch
from megatron.training import training

OFFSETS = torch.tensor([[0, 30, 40]], dtype=torch.int32)
LONGEST = torch.tensor(30)


class Timer:
    def start(self, **_: Any) -> None: ...
    def stop(self) -> None: ...


class Timers:
    def __call__(self, *_: Any, **__: Any) -> Timer:
        return Timer()

    def log(self, *_: Any) -> None: ...


class Clock:
    """In place of upstream's straggler detector."""

    def __call__(self, **_: Any) -> Any:
        return nullcontext()

    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


class Model(SimpleNamespace):
    """A model chunk."""

    def __call__(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(1)


def micro_batch(*_: Any) -> list[Any]:
    """What get_batch returns: ten values in the order of their names, here all but cu_seqlens and max_seqlen None."""
    return [None, OFFSETS, *[None] * 5, LONGEST, None, None]


def stub(model: Model) -> None:
    """Put stand-ins where upstream wants processes, a parser or a GPU."""
    args = SimpleNamespace(
        sft=True,
        seq_length=40,
        decoder_seq_length=None,
        eval_global_batch_size=1,
        eval_micro_batch_size=1,
        data_parallel_size=1,
        gtp_weight_remat_size=1,
        global_batch_size=1,
        micro_batch_size=1,
        cuda_graph_impl="none",
        moe_expert_rank_capacity_factor=None,
        eval_iters=1,
        empty_unused_memory_level=0,
        exit_duration_in_mins=None,
        consumed_valid_samples=0,
    )
    shared = {"get_args": lambda: args, "get_timers": Timers, "get_attr_wrapped_model": lambda *_, **__: None}
    own = {"get_batch": micro_batch, "stimer": Clock()}

    def schedule(**arguments: Any) -> list[Any]:
        arguments["forward_step_func"](None, model)
        return []

    groups = SimpleNamespace(pp=None, dp_cp=None)
    evaluating = {
        "is_pp_last_stage": lambda _: False,
        "get_attr_wrapped_model": lambda *_: groups,
        "get_forward_backward_func": lambda **_: schedule,
    }
    for module, more in ((pretrain_gpt, own), (training, evaluating)):
        for name, function in (shared | more).items():
            setattr(module, name, function)


def counted(chunks: int, model: Model, *, evaluated: bool = False) -> float | None:
    """Tokens of a step with one micro-batch."""
    if evaluated:
        training.evaluate(pretrain_gpt.forward_step, None, [model], None, SimpleNamespace(timers=None))
    for _ in range(chunks):
        pretrain_gpt.forward_step(None, model)
    tokens, _ = training.consume_seqlen_stats_in_iteration()
    return tokens


def main() -> int:
    model = Model(eval=lambda: None, train=lambda: None)
    stub(model)
    found = [counted(1, model), counted(2, model), counted(1, model, evaluated=True)]
    print(f"40 tokens: counted {found[0]:g}, with two chunks {found[1]:g}, after an evaluation {found[2]:g}")
    return 0 if set(found) == {40.0} else 1


if __name__ == "__main__":
    sys.exit(main())
