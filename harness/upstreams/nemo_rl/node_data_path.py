"""NeMo-RL's Megatron policy: its packing, its log-probabilities and its loss over packed rows, unmodified.

| step | upstream |
|---|---|
| documents to replicas and micro-batches | BatchedDataDict.shard_by_batch_size, with `packing_algorithm` |
| packing | nemo_rl.models.megatron.data.get_microbatch_iterator |
| log-probabilities without gradient | nemo_rl.models.megatron.train.LogprobsPostProcessor |
| loss | nemo_rl.models.megatron.train.LossPostProcessor with nemo_rl.algorithms.loss.NLLLossFn |

Every rank reads the rollouts of its replica, as one BatchedDataDict per step; nothing is sent. A document of n labels
is a sequence of n + 1 tokens. The model gets no labels: the loss takes its logits.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.core.packing.options import align_up
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.nemo_rl.packing import SHUFFLE_SEED
from harness.upstreams.node_base import Batch, RankContext, Scored, as_planned, rows_by_slot
from harness.upstreams.node_lookup import Unavailable, module_unavailable

_NEEDED: dict[str, tuple[str, ...]] = {
    "nemo_rl.models.megatron.data": ("get_microbatch_iterator",),
    "nemo_rl.models.megatron.train": ("LogprobsPostProcessor", "LossPostProcessor"),
    "nemo_rl.algorithms.loss": ("NLLLossFn",),
}


class NemoRlPath:
    """Pack, score and compute the loss by NeMo-RL's functions."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.data, self.train, self.loss = (importlib.import_module(name) for name in _NEEDED)
        self.settings = _settings(context.config)

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        lacking = (module_unavailable(module, "nemo_rl", *names) for module, names in _NEEDED.items())
        return next((reason for reason in lacking if reason), None)

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[Any]:
        """Yield pairs of the truth and NeMo-RL's ProcessedMicrobatch."""
        algorithm = self.context.config.options.packing_algorithm
        rollouts = _planned(truth) if algorithm == "planned" else _shard(truth, self.context.place.dp)
        processed, *_ = self.data.get_microbatch_iterator(rollouts, self.settings, 1, None)
        return (
            (micro, made, truth) for micro, made in zip(truth.micro_batches, as_planned(processed, len(truth.plans)))
        )

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        assert iterator is not None
        micro, processed, truth = next(iterator)
        batch = Batch(params=processed.packed_seq_params)
        if self.context.is_first(chunk):
            batch.tokens, batch.position_ids = processed.input_ids_cp_sharded, processed.position_ids
        if self.context.is_last(chunk):
            batch.score = _Loss(self, truth, micro, processed)
        return batch

    def log_probs(self, micro: MicroTruth, batch: Batch, logits: Tensor) -> list[Tensor]:
        """Return the log-probabilities of the tokens after the first, one tensor per document, in order."""
        assert isinstance(batch.score, _Loss)
        processed = batch.score.processed
        scores = self.train.LogprobsPostProcessor(self.settings)(
            data_dict=processed.data_dict,
            input_ids=processed.input_ids,
            cu_seqlens_padded=processed.cu_seqlens_padded,
        )(logits)[1]["logprobs"]
        lengths = [placed.document.length for placed in micro.plan.placed]
        # Its first column stands for the first token, which nothing predicts.
        return [row[1 : 1 + length] for row, length in zip(scores, lengths, strict=True)]


class _Loss:
    """NeMo-RL's loss of one micro-batch."""

    def __init__(self, path: NemoRlPath, truth: StepTruth, micro: MicroTruth, processed: Any) -> None:
        self.path, self.truth, self.micro, self.processed = path, truth, micro, processed

    def __call__(self, logits: Tensor) -> Scored:
        path, observed = self.path, _Observed(self.path.loss.NLLLossFn())
        post_process = path.train.LossPostProcessor(
            loss_fn=observed, cfg=path.settings, num_microbatches=len(self.truth.plans)
        )
        replicas = self.truth.replicas
        loss, _ = post_process(
            data_dict=self.processed.data_dict,
            packed_seq_params=self.processed.packed_seq_params,
            global_valid_seqs=torch.tensor(len(self.truth.documents)),
            # Over all replicas, by which upstream divides; it sums them up before it calls the loss.
            global_valid_toks=torch.tensor(sum(plan.loss_tokens for replica in replicas for plan in replica)),
        )(logits)
        losses, weights = (rows_by_slot(rows, self.micro, path.context) for rows in (observed.losses, observed.weights))
        return Scored(returned=(loss,), losses=losses, weights=weights)


class _Observed:
    """A loss function of NeMo-RL whose inputs are kept: by document, in order, [tokens - 1] each."""

    def __init__(self, loss_fn: Any) -> None:
        self.loss_fn = loss_fn
        self.losses: list[Tensor] = []
        self.weights: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        # Upstream asks the loss function for its kind and input type.
        return getattr(self.loss_fn, name)

    def __call__(self, next_token_logprobs: Tensor, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.losses += list(-next_token_logprobs.detach())
        self.weights += list(data["token_mask"][:, 1:] * data["sample_mask"][:, None])
        return self.loss_fn(next_token_logprobs, data, *args, **kwargs)


def _settings(config: CellConfig) -> dict[str, Any]:
    """Return the part of a PolicyConfig that packing and loss read."""
    layout = config.layout
    return {
        "sequence_packing": {"enabled": True, "fuse_loss": config.options.fuse_loss},
        "dynamic_batching": {"enabled": False},
        "make_sequence_length_divisible_by": config.style.document_multiple,
        "megatron_cfg": {
            "tensor_model_parallel_size": layout.tp,
            "sequence_parallel": layout.sp,
            "pipeline_model_parallel_size": layout.pp,
            "context_parallel_size": layout.cp,
        },
    }


def _planned(truth: StepTruth) -> Any:
    """Return the replica's documents as BatchedDataDict.shard_by_batch_size leaves them, in the bins of the plan."""
    plans, multiple = truth.plans, truth.config.style.document_multiple
    rollouts = _rollouts(truth, [placed.document for plan in plans for placed in plan.placed])
    ends = torch.tensor([len(plan.placed) for plan in plans]).cumsum(0).tolist()
    rollouts.micro_batch_indices = [[list(bounds) for bounds in zip([0, *ends], ends)]]
    sizes = [[align_up(placed.document.length + 1, multiple) for placed in plan.placed] for plan in plans]
    rollouts.micro_batch_lengths = [[sum(of_bin) for of_bin in sizes]]
    return rollouts


def _shard(truth: StepTruth, dp: int) -> Any:
    """Return what the policy sends to a replica of all documents of the step, as Policy.train does."""
    config = truth.config
    random.seed(SHUFFLE_SEED)  # first_fit_shuffle takes Python's own generator, as the driver left it
    shards, _ = _rollouts(truth, truth.documents).shard_by_batch_size(
        len(truth.replicas),
        sequence_packing_args={
            "algorithm": config.options.packing_algorithm,
            "input_key": "input_ids",
            "input_lengths_key": "input_lengths",
            "sequence_length_pad_multiple": config.style.document_multiple,
            "max_tokens_per_microbatch": config.options.max_tokens_per_microbatch or config.train.seq_length,
        },
    )
    return shards[dp]


def _rollouts(truth: StepTruth, documents: Sequence[Document]) -> Any:
    """Return documents as NeMo-RL's batch, a row each."""
    width = align_up(max(document.length for document in documents) + 1, truth.config.style.document_multiple)
    ids = torch.full((len(documents), width), truth.pad_id)
    mask = torch.zeros(len(documents), width)
    for row, document in enumerate(documents):
        length = document.length
        ids[row, : length + 1] = truth.content(document)[: length + 1]
        mask[row, 1 : length + 1] = torch.tensor(document.loss_mask, dtype=mask.dtype)
    batched: ModuleType = importlib.import_module("nemo_rl.distributed.batched_data_dict")
    return batched.BatchedDataDict(
        input_ids=ids,
        input_lengths=torch.tensor([document.length + 1 for document in documents]),
        token_mask=mask,
        sample_mask=torch.ones(len(documents)),
    )
