"""SkyRL's Megatron backend: preprocess_packed_seqs, and its way back to log-probabilities per document, unmodified.

| package | module | way back |
|---|---|---|
| skyrl-train 0.3 | skyrl_train.distributed.megatron | postprocess_packed_seqs, from_parallel_logits_to_logprobs |
| skyrl 0.1, 0.2 | skyrl.backends.skyrl_train.distributed.megatron | the same |
| skyrl 0.3, 0.4 | the same | from_parallel_logits_to_logprobs_packed_sequences(attention_mask=...) |

Documents come as in SkyRL's trainer: one per row, padded left (prompts) and right (responses), with a mask. Every
rank reads; nothing is sent. SkyRL trains on log-probabilities, so labels and masks take the way of the tokens here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from harness.node.data_paths.base import Batch, RankContext
from harness.node.probe.truth import MicroTruth, StepTruth

_HOMES = ("skyrl.backends.skyrl_train.distributed.megatron", "skyrl_train.distributed.megatron")


class SkyrlPath:
    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.packing, self.scoring = _upstream("megatron_utils"), _upstream("model_utils")

    @staticmethod
    def unavailable() -> str | None:
        try:
            packing = _upstream("megatron_utils")
            _upstream("model_utils")
        except ImportError as error:
            return f"SkyRL's Megatron backend cannot be imported: {error}"
        if hasattr(packing, "preprocess_packed_seqs"):
            return None
        return f"{packing.__name__} has no preprocess_packed_seqs"

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[MicroTruth]:
        return iter(truth.micro_batches)

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        """As forward_step of SkyRL's MegatronModelWrapper; what a stage does not use it does not get."""
        assert iterator is not None
        micro: MicroTruth = next(iterator)
        batch = Batch()
        wanted: tuple[str, ...] = ("tokens", "position_ids") if self.context.is_first(chunk) else ()
        wanted += ("labels", "loss_mask") if self.context.is_last(chunk) else ()
        for name in wanted or ("tokens",):
            rows, mask = self._rows(micro, name)
            packed, batch.params = self.packing.preprocess_packed_seqs(rows, mask, pre_process=bool(wanted))
            if wanted:
                setattr(batch, name, packed)
        return batch

    def log_probs(self, micro: MicroTruth, batch: Batch, logits: Tensor) -> list[Tensor]:
        """Log-probability of each next token, per document in order: [length - 1].

        `logits` [1, local slots, vocabulary share] are those of this rank, as the model would return them.
        """
        sequences, mask = self._rows(micro, "tokens")
        share = logits.shape[-1]
        first = self.context.place.tp * share
        group = parallel_state.get_tensor_model_parallel_group()
        bounds = {"vocab_start_index": first, "vocab_end_index": first + share, "inference_only": True}
        if hasattr(self.packing, "postprocess_packed_seqs"):
            rows = self.packing.postprocess_packed_seqs(logits, batch.params, mask, *mask.shape, post_process=True)
            scores = self.scoring.from_parallel_logits_to_logprobs(
                rows, sequences, tp_group=group, cp_group=None, **bounds
            )
        else:
            scores = self.scoring.from_parallel_logits_to_logprobs_packed_sequences(
                logits,
                micro.tokens[None].to(logits.device),
                batch.params.cu_seqlens_q_padded,
                mask.shape[1],
                group=group,
                cp_group=parallel_state.get_context_parallel_group(),
                attention_mask=mask,
                **bounds,
            )
        return [
            scores[row, start : start + length - 1] for row, (start, length) in enumerate(_places(micro, mask.shape[1]))
        ]

    def _rows(self, micro: MicroTruth, name: str) -> tuple[Tensor, Tensor]:
        """A stream as SkyRL's batch: [documents, seq_length], and the boolean mask of its real tokens."""
        stream: Tensor = getattr(micro, name)
        width = self.context.config.train.seq_length
        filler = micro.pad_id if name in ("tokens", "labels") else 0
        rows = torch.full((len(micro.plan.placed), width), filler, dtype=stream.dtype)
        mask = torch.zeros_like(rows, dtype=torch.bool)
        for row, ((start, length), item) in enumerate(zip(_places(micro, width), micro.plan.placed)):
            rows[row, start : start + length] = stream[item.start : item.start + length]
            mask[row, start : start + length] = True
        device = self.context.device.torch_device
        return rows.to(device), mask.to(device)


def _places(micro: MicroTruth, width: int) -> list[tuple[int, int]]:
    """(first column, length) of each document: in the middle of its row."""
    lengths = [item.document.length for item in micro.plan.placed]
    return [((width - length) // 2, length) for length in lengths]


def _upstream(name: str) -> ModuleType:
    """The module of SkyRL's Megatron backend; ImportError tells what is missing."""
    home = next((home for home in _HOMES if find_spec(home.split(".")[0]) is not None), None)
    if home is None:
        raise ImportError("neither skyrl nor skyrl-train is installed")
    return importlib.import_module(f"{home}.{name}")
