"""Megatron-LM `--sft`: upstream's own dataset and batch functions, called unmodified.

| software under test | batches come from | in |
|---|---|---|
| Megatron-LM checkout, from core_v0.16.1 to 2026-08 | its pretrain_gpt.forward_step and get_batch | `..._checkout.py` |
| megatron-core wheel, 0.17 to 0.19 | its functions, in the order of its own pretrain_gpt.get_batch | `..._wheel.py` |
| megatron-core wheel, up to 0.16 | nothing: it has neither SFTDataset nor get_batch_on_this_tp_rank | rejected |

Rows always come from upstream's SFTDataset (node_sft_wheel.py), on tensor-parallel rank 0 of every stage
(pretrain_gpt.is_dataset_built_on_rank).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from harness.core.cell.config import CellConfig
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_lm import node_sft_checkout as sft_checkout
from harness.upstreams.megatron_lm import node_sft_wheel as sft_wheel
from harness.upstreams.megatron_lm.node_sft_wheel import DATASET_MODULE, rows
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable, module_unavailable


class Wiring(Protocol):
    """One way to get a batch; `iterator` is None on ranks where upstream builds no dataset."""

    def batch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch: ...


class SftPath:
    """Read rows by upstream's SFT dataset, and fetch them by its get_batch."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.wiring: Wiring
        if sft_checkout.find() is None:
            self.wiring = sft_wheel.Wheel(context)
        else:  # then the script is there: `unavailable` has looked
            self.wiring = checkout = sft_checkout.Checkout(context)
            self.forward_step = checkout.forward_step

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        """Return why the path cannot be used, as Adapter says.

        Also imports what the path needs, so that ranks forked later have it.
        """
        lacking = sft_wheel.unavailable() if sft_checkout.find() is None else sft_checkout.unavailable(config)
        return lacking or module_unavailable(DATASET_MODULE, "megatron.core", "SFTDataset", "IGNORE_INDEX")

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[Any] | None:
        return rows(truth) if self.context.place.tp == 0 else None

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        return self.wiring.batch(iterator, chunk)
