"""Megatron-LM, from 0.16 to main of 2026-08: with --log-interval 1 the line of iteration 2 gives two losses.

    PYTHONPATH=Megatron-LM python log_interval_of_one.py

megatron.training.training.training_log prints a line after the first iteration whatever the interval is, and does not
reset its sums then, so that an interval begins with the first iteration. With an interval of 1 the interval is over by
then, and the next line prints the mean of both iterations. The same holds for its numbers of skipped and NaN iterations
and for the time per iteration. Here the losses are 4, 2 and 1. Exit code 1 if a line prints another loss.
"""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import torch
from megatron.training import training

LOSSES = [4.0, 2.0, 1.0]
_tensor = torch.tensor


class Args(SimpleNamespace):
    """Upstream's arguments; those that are not named are off."""

    def __getattr__(self, name: str) -> Any:
        return 0


def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
    """torch.tensor without a GPU."""
    return _tensor(*args, **{name: value for name, value in kwargs.items() if name != "device"})


def printed() -> list[float]:
    """The losses in the lines that upstream prints."""
    off = dict.fromkeys(("num_experts", "mtp_num_layers", "dsa_indexer_loss_coeff", "log_memory_interval"))
    args = Args(log_interval=1, train_iters=len(LOSSES), world_size=1, profile_ranks=[], **off)
    timer = SimpleNamespace(elapsed=lambda **_: 1.0)

    def timers(*_: Any, **__: Any) -> Any:
        return timer

    timers.log = lambda *_, **__: None  # type: ignore[attr-defined]
    lines: list[str] = []
    nothing = SimpleNamespace(track_app_tag=lambda *_: None, track_e2e_metrics=lambda *_: None)
    wrapped = {
        "get_args": lambda: args,
        "get_timers": lambda: timers,
        **{f"get_{name}": lambda: None for name in ("tensorboard_writer", "wandb_writer", "one_logger", "telemetry")},
        "get_energy_monitor": lambda: None,
        "one_logger_utils": nothing,
        "get_num_microbatches": lambda: 1,
        "num_floating_point_operations": lambda *_, **__: 0.0,
        "reduce_max_stat_across_model_parallel_group": lambda value, **_: value,
        "print_rank_last": lines.append,
    }
    for name, function in wrapped.items():
        setattr(training, name, function)
    sums: dict[str, Any] = {}
    for number, loss in enumerate(LOSSES):
        reported = {"lm loss": _tensor([loss])}
        rest = (1e-3, number + 1, 1.0, False, 0, 1.0, None, None, None)
        training.training_log(reported, sums, *rest, is_first_iteration=number == 0)
    return [float(found[1]) for line in lines if (found := re.search(r"lm loss: (\S+)", line))]


def main() -> int:
    torch.tensor = on_cpu  # type: ignore[assignment]
    found = printed()
    print(f"losses {LOSSES}, printed {found}")
    return 0 if found == LOSSES else 1


if __name__ == "__main__":
    sys.exit(main())
