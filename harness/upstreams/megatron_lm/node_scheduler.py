"""Megatron-LM's THD scheduler: wrap_data_iterator and get_batch_on_this_rank_for_sequence_packing, unmodified.

| software under test | where |
|---|---|
| Megatron-LM main from 2026-08 (a9381be598) | megatron.core.datasets.data_schedule |
| Megatron-LM dev of 2026-08 | the same, called by its training script only: `trainer: megatron` |
| megatron-core wheels up to 0.19 | missing: rejected |

Padded documents enter one by one, in the form of upstream's VarlenDataset, on tensor-parallel rank 0 of the first and
last stage; each data-parallel replica reads a contiguous share of the step's documents. DpBalancedScheduler sends them
to the replica of their pack, and the metadata to middle stages. No configuration class of main has the scheduler's
fields yet, so the few that it reads are passed directly.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import Workload
from harness.core.packing.documents import Document
from harness.probe.truth import StepTruth
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable, module_unavailable, not_in_release, release, takes

MODULE = "megatron.core.datasets.data_schedule"
_PREDICTS = "mtp_on_this_rank"
_BATCH = "get_batch_on_this_rank_for_sequence_packing"
_NEEDED = ("wrap_data_iterator", _BATCH)


def schedules() -> bool:
    """Return whether this release has the option --sequence-packing-scheduler."""
    upstream: Any = importlib.import_module("megatron.core.model_parallel_config")
    return hasattr(upstream.ModelParallelConfig, "sequence_packing_scheduler")


class SchedulerPath:
    """Pack by wrap_data_iterator, and fetch by upstream's batch function for sequence packing."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.upstream: Any = importlib.import_module(MODULE)
        self.workload: Workload | None = None  # of the step that `iterator` was last called for
        self.iterators: list[Any] = []  # of the same step, one per chunk

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        if missing := module_unavailable(MODULE, "megatron.core", *_NEEDED):
            return missing
        if not config.trained_by_harness:
            return None
        if not takes(getattr(importlib.import_module(MODULE), _BATCH), _PREDICTS):
            return not_in_release(f"{release('megatron.core')} has no {_BATCH}({_PREDICTS})", "megatron.core")
        if schedules():
            reason = "the scheduler of branch dev reads the script's configuration; use trainer: megatron"
            return not_in_release(reason, "megatron.core")
        return None

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[Any] | None:
        """Return the chunk's iterator.

        Upstream schedules a step once for all chunks, collectively over the whole layout.
        """
        if chunk == 0:
            self.iterators = self._scheduled(truth)
        chosen: Iterator[Any] | None = self.iterators[chunk]
        return chosen

    def _scheduled(self, truth: StepTruth) -> list[Any]:
        """Return one iterator per chunk. Also stores upstream's counts, which are sums over all replicas, unchanged."""
        layout, place = truth.config.layout, self.context.place
        documents = share(truth.documents, layout.dp, place.dp)
        # Upstream's own rule; a source on other ranks would never be read.
        reads = place.tp == 0 and place.pp in (0, layout.pp - 1)
        source = (self._sample(truth, document) for document in documents) if reads else None
        config = SimpleNamespace(
            sequence_packing_scheduler="dp_balanced",
            max_seqlen_per_dp_cp_rank=truth.config.train.seq_length // layout.cp,
            virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
            microbatch_group_size_per_vp_stage=layout.pp,
        )
        # One source in every place: upstream reads the first and gives the others copies of what it scheduled.
        sources = [source] * layout.vpp if layout.vpp > 1 else source
        iterators, count, tokens, squares = self.upstream.wrap_data_iterator(sources, config, len(documents))
        self.workload = Workload(micro_batches=count, tokens=tokens, squares=squares)
        return list(iterators) if layout.vpp > 1 else [iterators]

    def _sample(self, truth: StepTruth, document: Document) -> dict[str, Tensor]:
        """Return one document, padded to the alignment, as upstream's VarlenDataset returns it."""
        size, real = truth.config.style.size(document), document.length
        ids = truth.content(document)[: real + 1]
        tokens, labels = torch.full((size,), truth.pad_id), torch.full((size,), truth.pad_id)
        mask = torch.zeros(size, dtype=torch.float32)
        tokens[:real], labels[:real] = ids[:-1], ids[1:]
        mask[:real] = torch.tensor(document.loss_mask, dtype=mask.dtype)
        sample = {"tokens": tokens, "labels": labels, "loss_mask": mask, "position_ids": torch.arange(size)}
        sample |= {"original_seq_len": torch.tensor([real]), "padded_seq_len": torch.tensor([size])}
        return {name: value.to(self.context.device.torch_device) for name, value in sample.items()}

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        vpp = self.context.config.layout.vpp
        stage: dict[str, Any] = {"vpp_size": vpp, "vp_stage": chunk} if vpp > 1 else {}
        stage[_PREDICTS] = self.context.predicts(chunk)
        fields = self.upstream.get_batch_on_this_rank_for_sequence_packing(iterator, **stage)
        tokens, labels, loss_mask, _, position_ids, params, padding_mask = fields
        return Batch(
            tokens=tokens,
            labels=labels,
            loss_mask=loss_mask,
            position_ids=position_ids,
            params=params,
            padding_mask=padding_mask,
        )


def share(documents: list[Document], dp: int, replica: int) -> list[Document]:
    """Return the documents that one replica reads: contiguous, so that upstream's global order is the order of the
    step.
    """
    return documents[replica * len(documents) // dp : (replica + 1) * len(documents) // dp]
