"""SkyRL's Megatron backend: preprocess_packed_seqs, and the way back to log-probabilities per document, unmodified.

| package | module | switch | inverse |
|---|---|---|---|
| skyrl-train 0.3 | skyrl_train.distributed.megatron | use_sample_packing | postprocess_packed_seqs, then logits |
| skyrl 0.1, 0.2 | skyrl.backends.skyrl_train.distributed.megatron | use_sample_packing | the same |
| skyrl 0.3, 0.4 | the same | remove_microbatch_padding | packed logits, with the mask |

Documents come as in SkyRL's trainer: one per row, padded left (prompts) and right (responses), with a mask. Every
rank reads; nothing is sent. SkyRL trains on log-probabilities, so labels and masks are packed here, like tokens.
With the switch off, remove_left_padding moves documents to the left in rows as long as the longest document, and
recover_left_padding moves logits back; causal attention does not need the mask that remove_left_padding returns.
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

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Missing
from harness.core.packing.fields import FIRST_STAGE, LAST_STAGE
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable, module_unavailable

_HOMES = ("skyrl.backends.skyrl_train.distributed.megatron", "skyrl_train.distributed.megatron")


class SkyrlPath:
    """Pack by preprocess_packed_seqs, and score by SkyRL's way back to documents."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.packing, self.scoring = _upstream("megatron_utils"), _upstream("model_utils")

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        home = _home()
        if home is None:
            return Missing(reason="neither skyrl nor skyrl-train is installed; add one to `packages` of the stack")
        root = home.split(".")[0]
        packs = config.options.remove_microbatch_padding
        needed = ("preprocess_packed_seqs",) if packs else ("remove_left_padding", "recover_left_padding")
        packing = module_unavailable(f"{home}.megatron_utils", root, *needed)
        return packing or module_unavailable(f"{home}.model_utils", root)

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[MicroTruth]:
        return iter(truth.micro_batches)

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        """Pack as forward_step of SkyRL's MegatronModelWrapper does; a stage gets only the fields it uses."""
        assert iterator is not None
        micro: MicroTruth = next(iterator)
        batch = Batch()
        fields: tuple[str, ...] = FIRST_STAGE if self.context.is_first(chunk) else ()
        fields += LAST_STAGE if self.context.is_last(chunk) else ()
        # A middle stage uses no field, but SkyRL makes its packed params from the tokens all the same.
        for name in fields or ("tokens",):
            stream, batch.params = self._packed(micro, name, bool(fields))
            if fields:
                setattr(batch, name, stream)
        return batch

    def _packed(self, micro: MicroTruth, name: str, pre_process: bool) -> tuple[Tensor, Any]:
        """Return a stream as the model gets it, and its packed params, None when nothing is packed."""
        rows, mask = self._rows(micro, name)
        if micro.plan.style.packed:
            packed: tuple[Tensor, Any] = self.packing.preprocess_packed_seqs(rows, mask, pre_process=pre_process)
            return packed
        ids, _, positions = self.packing.remove_left_padding(rows, mask, _positions(mask), pre_process=pre_process)
        return (positions if name == "position_ids" else ids), None

    def log_probs(self, micro: MicroTruth, batch: Batch, logits: Tensor) -> list[Tensor]:
        """Return the log-probabilities of the next tokens, one tensor [length - 1] per document, in order.

        `logits` [rows, local slots, vocabulary share]: this rank's, as the model would return them.
        """
        sequences, mask = self._rows(micro, "tokens")
        share = logits.shape[-1]
        first = self.context.place.tp * share
        group = parallel_state.get_tensor_model_parallel_group()
        bounds = {"vocab_start_index": first, "vocab_end_index": first + share, "inference_only": True}
        if hasattr(self.packing, "postprocess_packed_seqs") or not micro.plan.style.packed:
            rows = self._unpacked(logits, sequences, mask, batch.params)
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
            scores[row, start : start + length - 1] for row, (start, length) in enumerate(_spans(micro, mask.shape[1]))
        ]

    def _unpacked(self, logits: Tensor, sequences: Tensor, mask: Tensor, params: Any) -> Tensor:
        """Return the logits at the positions of their tokens in SkyRL's batch: [documents, seq_length, vocabulary
        share].
        """
        rows: Tensor
        if params is None:
            _, shortened, _ = self.packing.remove_left_padding(sequences, mask, _positions(mask))
            rows = self.packing.recover_left_padding(logits, shortened, mask, mask.shape[1], post_process=True)
        else:
            rows = self.packing.postprocess_packed_seqs(logits, params, mask, *mask.shape, post_process=True)
        return rows

    def _rows(self, micro: MicroTruth, name: str) -> tuple[Tensor, Tensor]:
        """Return a stream as in SkyRL's batch, [documents, seq_length], and the boolean mask of its real tokens."""
        stream: Tensor = getattr(micro, name)
        width = self.context.config.train.seq_length
        filler = micro.pad_id if name in ("tokens", "labels") else 0
        rows = torch.full((len(micro.plan.placed), width), filler, dtype=stream.dtype)
        mask = torch.zeros_like(rows, dtype=torch.bool)
        for row, ((start, length), placed) in enumerate(zip(_spans(micro, width), micro.plan.placed)):
            rows[row, start : start + length] = stream[placed.start : placed.start + length]
            mask[row, start : start + length] = True
        device = self.context.device.torch_device
        return rows.to(device), mask.to(device)


def _spans(micro: MicroTruth, width: int) -> list[tuple[int, int]]:
    """Return (first column, length) of each document, which is in the middle of its row."""
    lengths = [placed.document.length for placed in micro.plan.placed]
    # Padding on both sides, as prompts and responses of different lengths give.
    return [((width - length) // 2, length) for length in lengths]


def _positions(mask: Tensor) -> Tensor:
    """Return the positions of the real tokens in each row, as SkyRL's megatron_worker counts them."""
    return (mask.long().cumsum(-1) - 1).masked_fill(~mask, 0)


def _home() -> str | None:
    """Return the package of SkyRL's Megatron backend; None where SkyRL is not installed."""
    return next((home for home in _HOMES if find_spec(home.split(".")[0]) is not None), None)


def _upstream(name: str) -> ModuleType:
    return importlib.import_module(f"{_home()}.{name}")
