"""Megatron-LM `--sft`: upstream's own batch functions from the installed megatron-core, called unmodified.

| megatron-core | functions |
|---|---|
| up to 0.18 | not all of them in megatron.core.utils: the cell is rejected |
| 0.19 | get_batch_on_this_tp_rank(batch, ...), flatten_batch_for_packed_sequences, get_batch_on_this_cp_rank |

The order of calls and the PackedSeqParams are those of the release's pretrain_gpt.get_batch and forward_step, which
the wheel does not hold. Rows come in the form of megatron.training.datasets.sft_dataset.SFTDataset.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import megatron.core.package_info as package_info
import megatron.core.utils as upstream
import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor
from torch.utils.data import default_collate

from harness.node.data_paths.base import Batch, RankContext
from harness.node.probe.truth import MicroTruth, StepTruth
from harness.words.packing import MicroBatch

_NEEDED = ("get_batch_on_this_tp_rank", "get_batch_on_this_cp_rank", "flatten_batch_for_packed_sequences")
_KEYS = (
    "attention_mask",
    "cu_seqlens",
    "cu_seqlens_padded",
    "hybrid_cp_group",
    "labels",
    "local_cp_size",
    "loss_mask",
    "max_seqlen",
    "position_ids",
    "tokens",
)


class SftPath:
    def __init__(self, context: RankContext) -> None:
        self.context = context

    @staticmethod
    def unavailable() -> str | None:
        missing = [name for name in _NEEDED if not hasattr(upstream, name)]
        if not missing:
            return None
        return f"megatron-core {package_info.__version__} has no megatron.core.utils.{missing[0]}"

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[dict[str, Tensor]] | None:
        """Upstream builds the dataset on TP rank 0 of every stage (pretrain_gpt.is_dataset_built_on_rank)."""
        if self.context.place.tp != 0:
            return None
        return (default_collate(_samples(micro)) for micro in truth.micro_batches)

    def fetch(self, iterator: Iterator[dict[str, Tensor]] | None, chunk: int) -> Batch:
        batch = self._on_this_tp_rank(next(iterator) if iterator is not None else {})
        batch = upstream.flatten_batch_for_packed_sequences(batch)
        if self.context.is_first(chunk) or self.context.is_last(chunk):
            batch = upstream.get_batch_on_this_cp_rank(
                batch, is_hybrid_cp=False, cp_group=parallel_state.get_context_parallel_group()
            )
        else:  # pretrain_gpt.get_batch returns the metadata alone
            batch = {name: batch[name] for name in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")}
        return Batch(
            tokens=batch.get("tokens"),
            labels=batch.get("labels"),
            loss_mask=batch.get("loss_mask"),
            position_ids=batch.get("position_ids"),
            params=_packed_seq_params(batch, self.context.config.train.seq_length),
        )

    def _on_this_tp_rank(self, sample: dict[str, Tensor]) -> dict[str, Any]:
        config = self.context.config
        device = self.context.device.torch_device
        batch: dict[str, Any] = {}
        if self.context.place.tp == 0:
            batch = {key: sample[key].to(device) if key in sample else None for key in _KEYS}
        result: dict[str, Any] = upstream.get_batch_on_this_tp_rank(
            batch,
            has_cu_seqlens=True,
            is_hybrid_cp=False,
            create_attention_mask_in_dataloader=False,
            broadcast_src_rank=parallel_state.get_tensor_model_parallel_src_rank(),
            broadcast_group=parallel_state.get_tensor_model_parallel_group(),
            cp_size=config.layout.cp,
            tp_rank=self.context.place.tp,
            micro_batch_size=config.micro_batch_size,
            seq_length=config.train.seq_length,
            mtp_on_this_rank=False,
            pipeline_model_parallel_size=config.layout.pp,
            is_pipeline_first_stage=parallel_state.is_pipeline_first_stage(),
            is_pipeline_last_stage=parallel_state.is_pipeline_last_stage(),
        )
        return result


def _samples(micro: MicroTruth) -> list[dict[str, Tensor]]:
    """One sample per row, as SFTDataset.__getitem__ returns it: cu_seqlens filled up to seq_length + 1 entries."""
    samples = []
    start = 0
    for row in micro.plan.rows:
        part = slice(start, start + row.length)
        start += row.length
        params = MicroBatch(rows=(row,), style=micro.plan.style).params()
        assert params is not None
        cu_seqlens = torch.full((row.length + 1,), row.length, dtype=torch.int32)
        cu_seqlens[: len(params.cu_seqlens_q)] = torch.tensor(params.cu_seqlens_q, dtype=torch.int32)
        samples.append(
            {
                "tokens": micro.tokens[part],
                "labels": micro.labels[part],
                "loss_mask": micro.loss_mask[part],
                "position_ids": micro.position_ids[part],
                "cu_seqlens": cu_seqlens,
                "max_seqlen": torch.tensor(params.max_seqlen_q, dtype=torch.int32),
            }
        )
    return samples


def _packed_seq_params(batch: dict[str, Any], seq_length: int) -> PackedSeqParams | None:
    """As pretrain_gpt.forward_step builds it (0.19): padded offsets stand in for the real ones if given."""
    if batch["cu_seqlens"] is None:
        return None
    cu_seqlens, padded = batch["cu_seqlens"].squeeze(0), batch["cu_seqlens_padded"]
    padded = None if padded is None else padded.squeeze(0)
    chosen = cu_seqlens if padded is None else padded
    longest = int(batch["max_seqlen"].item())
    known = inspect.signature(PackedSeqParams).parameters
    extra = {"tokens_per_sample": seq_length} if "tokens_per_sample" in known else {}
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=chosen,
        cu_seqlens_kv=chosen,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        **extra,
    )
