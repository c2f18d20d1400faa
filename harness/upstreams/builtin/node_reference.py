"""The harness's own packer, tensor-parallel broadcast and context-parallel partition.

Tensor-parallel rank 0 of every stage reads; metadata goes to every rank of every stage, tokens to the chunk with
the embedding, labels to the chunk with the loss. This path must always be right: most faults are injected into it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import Workload, summed_lengths
from harness.core.packing.fields import FIRST_STAGE, LAST_STAGE
from harness.features.hybrid.pattern import MAMBA
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable

_DTYPES = {"loss_mask": torch.float32, "padding_mask": torch.bool}
_FIELDS_OF_PARAMS = inspect.signature(PackedSeqParams).parameters
_SAMPLES = "tokens_per_sample" in _FIELDS_OF_PARAMS  # from 0.19
SETS_PAD_BETWEEN_SEQS = "pad_between_seqs" in _FIELDS_OF_PARAMS  # from 0.19


class ReferencePath:
    """Pack, broadcast and split with the harness's own code."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.reads = context.place.tp == 0
        style = context.config.style
        self.row_length = style.row_length if _SAMPLES and context.config.model.balanced else None
        self.mamba = MAMBA in context.config.model.pattern
        self.workload: Workload | None = None  # of the step that `iterator` was last called for

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        return None

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[MicroTruth] | None:
        if chunk == 0:
            self.workload = self._counted(truth)
        return iter(truth.micro_batches) if self.reads else None

    def _counted(self, truth: StepTruth) -> Workload:
        """Return the number of micro-batches of this replica; tokens and squares summed over all replicas."""
        device = self.context.device.torch_device
        totals = torch.tensor(summed_lengths(truth.plans), dtype=torch.float64, device=device)
        dist.all_reduce(totals, group=parallel_state.get_data_parallel_group())
        return Workload(micro_batches=len(truth.plans), tokens=int(totals[0]), squares=int(totals[1]))

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        fields = (FIRST_STAGE if self.context.reads_tokens(chunk) else ()) + (
            LAST_STAGE if self.context.reads_labels(chunk) else ()
        )
        fields += ("padding_mask",) if self.context.config.model.padding_mask else ()
        micro: MicroTruth | None = next(iterator) if iterator is not None else None
        metadata, body = self._broadcast(micro, fields)
        batch = Batch(params=_packed_seq_params(metadata, self.row_length, self.mamba))
        for name, stream in zip(fields, body):
            setattr(batch, name, stream[None].to(_DTYPES.get(name, torch.int64)))
        return batch

    def _broadcast(self, micro: MicroTruth | None, fields: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """Return the metadata [2, documents + 1] (real, padded offsets) and streams [fields, local slots], both
        int64.
        """
        device = self.context.device.torch_device
        sizes = torch.zeros(2, dtype=torch.int64, device=device)
        metadata = body = torch.empty(0)
        if micro is not None:
            metadata, body = self._read(micro, fields)
            metadata, body = metadata.to(device), body.to(device)
            sizes = torch.tensor([metadata.shape[1], body.shape[1]], device=device)
        # Sizes first: the other ranks do not read the plan, as in upstream's broadcast, so that this path can fail
        # where upstream's does.
        self._send(sizes)
        if micro is None:
            offsets, slots = (int(value) for value in sizes)
            metadata = torch.empty(2, offsets, dtype=torch.int64, device=device)
            body = torch.empty(len(fields), slots, dtype=torch.int64, device=device)
        self._send(metadata)
        if fields:
            self._send(body)
        return metadata, body

    def _read(self, micro: MicroTruth, fields: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        params = micro.plan.params()
        assert params is not None and params.cu_seqlens_q_padded is not None
        metadata = torch.tensor([params.cu_seqlens_q, params.cu_seqlens_q_padded])
        layout = self.context.config.layout
        streams = [micro.local(getattr(micro, name), layout.cp, self.context.place.cp)[0].long() for name in fields]
        slots = micro.plan.slots // layout.cp
        return metadata, torch.stack(streams) if streams else torch.empty(0, slots, dtype=torch.int64)

    def _send(self, tensor: Tensor) -> None:
        if self.context.config.layout.tp > 1:
            dist.broadcast(
                tensor,
                parallel_state.get_tensor_model_parallel_src_rank(),
                group=parallel_state.get_tensor_model_parallel_group(),
            )


def _packed_seq_params(metadata: Tensor, row_length: int | None, mamba: bool = False) -> PackedSeqParams:
    """Build upstream's packed params.

    `row_length`: length of every row, for auxiliary losses per row; None: not passed.

    `mamba`: PackedSeqParams makes seq_idx from total_tokens, and without it Mamba's state crosses documents.
    """
    real, padded = metadata.int()
    if torch.equal(real, padded):
        padded = real  # Transformer Engine takes its fast path only if both are the same object
    longest = int((padded[1:] - padded[:-1]).max())
    # Without it Transformer Engine guesses, up to 2.16 wrongly.
    more: dict[str, Any] = {"pad_between_seqs": True} if SETS_PAD_BETWEEN_SEQS and padded is not real else {}
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=real,
        cu_seqlens_kv=real,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        **more,
        **({"total_tokens": int(padded[-1])} if mamba else {}),
        **({} if row_length is None else {"tokens_per_sample": row_length}),
    )
