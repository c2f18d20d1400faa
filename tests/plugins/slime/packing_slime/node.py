"""slime's packing and SFT loss, called as its forward_step calls them, unmodified. Ranks load this.

| step | slime |
|---|---|
| packing, and the split over context ranks | slime.backends.megatron_utils.data: DataIterator, get_batch |
| loss | slime.backends.megatron_utils.loss: loss_function, which calls sft_loss_function |
| log-probabilities, back in the order of documents | the same: get_log_probs_and_entropy, all_gather_with_cp |

Every rank reads the samples of its replica; nothing is sent. A document of n labels is a sample of n + 1 tokens, whose
prompt is the first one.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.node_base import Batch, RankContext, Scored, rows_by_slot
from harness.upstreams.node_lookup import Unavailable, module_unavailable
from packing_slime.project import PAD_MULTIPLIER

_BACKEND = "slime.backends.megatron_utils"
_NEEDED: dict[str, tuple[str, ...]] = {
    f"{_BACKEND}.data": ("DataIterator", "get_batch"),
    f"{_BACKEND}.loss": ("loss_function", "get_log_probs_and_entropy", "all_gather_with_cp"),
}
_KEYS = ("tokens", "total_lengths", "response_lengths", "loss_masks", "rollout_mask_sums", "multimodal_train_inputs")


class SlimePath:
    """Pack, score and compute the loss by slime's functions."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.data, self.losses = (importlib.import_module(name) for name in _NEEDED)
        if context.device.torch_device.type == "cpu":
            _run_on_cpu()
        self.args = Namespace(
            loss_type="sft_loss",
            calculate_per_token_loss=True,
            recompute_loss_function=False,
            allgather_cp=False,
            log_probs_chunk_size=-1,
            rollout_temperature=1.0,
        )

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        lacking = (module_unavailable(module, "slime", *names) for module, names in _NEEDED.items())
        return next((reason for reason in lacking if reason), None)

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[Any]:
        """Yield, per micro-batch, its truth and what slime's get_batch makes of the samples."""
        placed = [item for micro in truth.micro_batches for item in micro.plan.placed]
        device = self.context.device.torch_device
        lengths = [item.document.length for item in placed]
        samples = {
            "tokens": [truth.content(item.document)[: item.document.length + 1].to(device) for item in placed],
            "total_lengths": [length + 1 for length in lengths],
            "response_lengths": lengths,
            "loss_masks": [torch.tensor(item.document.loss_mask, dtype=torch.int, device=device) for item in placed],
        }
        numbers = iter(range(len(placed)))
        schedule = [[next(numbers) for _ in micro.plan.placed] for micro in truth.micro_batches]
        inner = self.data.DataIterator(samples, schedule)
        for micro in truth.micro_batches:
            yield micro, len(schedule), self.data.get_batch(inner, _KEYS, PAD_MULTIPLIER)

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        assert iterator is not None
        micro, count, made = next(iterator)
        batch = Batch(params=made["packed_seq_params"])
        if self.context.is_first(chunk):
            batch.tokens = made["tokens"]
        if self.context.is_last(chunk):
            batch.score = partial(self.score, micro, count, made)
        return batch

    def score(self, micro: MicroTruth, count: int, made: Any, logits: Tensor) -> Scored:
        """Return slime's loss of logits [1, local slots, vocabulary / tp], and what it is made of."""
        returned = self.losses.loss_function(self.args, made, count, 0, logits)
        losses = rows_by_slot([-row for row in self.scores(made, logits.detach())], micro, self.context)
        weights = rows_by_slot(made["loss_masks"], micro, self.context)
        return Scored(returned=returned[:2], losses=losses, weights=weights)

    def scores(self, made: Any, logits: Tensor) -> list[Tensor]:
        """Return the log-probabilities of the tokens after the first, one tensor per document, in order."""
        sizes = {name: made[name] for name in ("total_lengths", "response_lengths")}
        _, found = self.losses.get_log_probs_and_entropy(
            logits, args=self.args, unconcat_tokens=made["unconcat_tokens"], **sizes
        )
        shares = zip(found["log_probs"], *sizes.values(), strict=True)
        return [self.losses.all_gather_with_cp(*share).detach() for share in shares]

    def log_probs(self, micro: MicroTruth, batch: Batch, logits: Tensor) -> list[Tensor]:
        """Return the same for any logits: the check tokens_placed asks for which token each one is."""
        _, _, made = batch.score.args
        return self.scores(made, logits)


def _run_on_cpu() -> None:
    """Register a CPU with slime, which knows only GPUs, by its own interface for further accelerators."""
    accelerator: Any = importlib.import_module("slime.utils.accelerator")
    base: Any = importlib.import_module("slime.utils.accelerator.base")
    named = {"name": "cpu", "device_type": "cpu", "communication_backend_name": "gloo"}
    functions = {
        "is_available": lambda self: True,
        "device": lambda self, index=None: torch.device("cpu"),
        "current_device": lambda self: "cpu",
    }
    cpu = type("Cpu", (base.Accelerator,), {**named, **functions})
    cpu.__abstractmethods__ = frozenset()  # type: ignore[attr-defined] # packing and loss call no others
    accelerator.set_accelerator(cpu())
