"""Megatron-Bridge 0.6.2: prediction layers train on prompts and padding (issue 6103).

    python prediction_without_loss_mask.py     # with Megatron-Bridge and what its training.gpt_step imports

`gpt_step._forward_step_common` reads the loss mask of a micro-batch, but passes it to the loss function only. Without
one, megatron-core's `process_mtp_loss` counts every position (`torch.ones_like(mtp_labels)`). Exit code 1 if the model
gets no loss mask.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from megatron.bridge.training import gpt_step

SLOTS = torch.arange(8).view(1, -1)
MASK = (SLOTS > 5).float()  # all but the last two labels are those of a prompt


class Timer:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return nullcontext()

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None: ...


def main() -> int:
    given: dict[str, Any] = {}

    def model(**arguments: Any) -> torch.Tensor:
        given.update(arguments)
        return SLOTS.float()

    one = SimpleNamespace(size=lambda: 1)
    model.config = SimpleNamespace(mtp_num_layers=1, seq_length=8)  # type: ignore[attr-defined]
    model.pg_collection = SimpleNamespace(cp=one)  # type: ignore[attr-defined]
    gpt_step.get_model_config = lambda model: model.config
    gpt_step.get_pg_collection = lambda model: model.pg_collection
    gpt_step.get_model_chunk_vp_stage = lambda model: None
    timers = lambda name, log_level=0: SimpleNamespace(start=lambda: None, stop=lambda: None)  # noqa: E731
    state = SimpleNamespace(timers=timers, straggler_timer=Timer(), cfg=None)
    batch = SLOTS, SLOTS, MASK, None, SLOTS, None
    gpt_step.get_batch = lambda *args, **kwargs: batch
    _, mask = gpt_step._forward_step_common(state, None, model)
    print(f"{int(mask.sum())} of {mask.numel()} labels count in the loss; the model gets {', '.join(sorted(given))}")
    return int("loss_mask" not in given)


if __name__ == "__main__":
    sys.exit(main())
