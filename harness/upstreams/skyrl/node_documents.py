"""The documents of a step as SkyRL's training batch, and the way back from its rows to the slots of the plan.

A document of n tokens that have a label is a row of n + 1 tokens: SkyRL predicts each token of a row from those before
it. Rows are padded on the left, so a document's last n columns are the values of its labels, in its log-probabilities
as in its loss mask.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import PAD
from harness.core.run.records import TensorSeen
from harness.probe.truth import MicroTruth, StepTruth


def batch_of(config: CellConfig, step: int, worker: Any) -> Any:
    """Return this rank's share of a step, made by SkyRL's collator and divided over replicas as by its MeshDispatch."""
    documents = examples(config, step)
    batch = _collator(config, worker.tokenizer)(documents, len(documents))
    place = worker.mesh_rank
    return batch.chunk(len(batch) // place.dp_size)[place.dp]


def _collator(config: CellConfig, tokenizer: Any) -> Any:
    """Return the collator that SkyRL's SFT trainer makes."""
    collators: Any = importlib.import_module("skyrl.train.dataset.collators")
    if not config.options.use_sequence_packing:
        return collators.DefaultCollator(tokenizer, config.micro_batch_size)
    layout = config.layout
    return collators.PackedDataCollator(
        tokenizer,
        max_tokens_per_microbatch=config.options.max_tokens_per_microbatch or config.train.seq_length,
        tp_size=layout.tp,
        pp_size=layout.pp,
        cp_size=layout.cp,
        dp_size=layout.dp,
        batch_size=config.train.global_batch,
        micro_train_batch_size_per_gpu=config.micro_batch_size,
    )


def examples(config: CellConfig, step: int) -> list[dict[str, Any]]:
    """Return documents as SkyRL's tokenized examples: in order for its controller, or those of all replicas in turn."""
    truth = StepTruth(config, step, 0)
    dealt = [placed.document for replica in truth.replicas for plan in replica for placed in plan.placed]
    tokenized = []
    for document in truth.documents if config.options.use_sequence_packing else dealt:
        ids = truth.content(document)[: document.length + 1].tolist()
        tokenized.append(
            {
                "input_ids": ids,
                "attention_mask": [1] * len(ids),
                "num_actions": document.length,
                "loss_mask": list(document.loss_mask),
            }
        )
    return tokenized


def loss_scale(truth: StepTruth) -> Tensor:
    """Return what SkyRL's collator makes of a 1 in the loss mask, so that losses add up to the mean over the step's
    tokens.
    """
    tokens = sum(plan.loss_tokens for replica in truth.replicas for plan in replica)
    return torch.tensor(1.0) / max(tokens, 1)


def by_slot(rows: Tensor, micro: MicroTruth, *, controlled: bool = False) -> Tensor:
    """Return [slots] of the micro-batch, of values by document whose last columns are those of its labels.

    0 elsewhere. A row of the controller has the documents at their slots already, and padding in between.
    """
    stream = torch.zeros(micro.plan.slots, dtype=rows.dtype)
    if controlled:
        [row] = rows.cpu()
        stream[: len(row)] = row[: len(stream)]
        return stream
    for row, placed in zip(rows.cpu(), micro.plan.placed):
        values = row[-placed.document.length :]
        end = placed.start + placed.document.length
        stream[end - len(values) : end] = values
    return stream


def log_probs_seen(stream: Tensor, scores: Tensor, micro: MicroTruth, cp: int, cp_rank: int) -> TensorSeen:
    """Return whether `stream`, by slot, holds at each of this rank's slots the log-probability computed for it,
    `scores`.

    `first` of the result: [document, position, expected slot, found slot or -1].
    """
    shape, dtype = [micro.plan.slots], str(stream.dtype)
    owners, slots = (micro.local(stream, cp, cp_rank) for stream in (micro.owners, torch.arange(micro.plan.slots)))
    right = scores.cpu()
    if right.shape != slots.shape:
        return TensorSeen(shape=list(right.shape), dtype=dtype, mismatches=slots.numel())
    actual = micro.local(stream, cp, cp_rank)
    # Bit for bit: the values are moved, not computed again.
    wrong = ((actual != right) & (owners[..., 0] != PAD)).nonzero()
    if not len(wrong):
        return TensorSeen(shape=shape, dtype=dtype, mismatches=0)
    row, slot = wrong[0].tolist()
    same = slots[right == actual[row, slot]].tolist()
    document, position = owners[row, slot].tolist()
    first = [document, position, int(slots[row, slot]), same[0] if same else -1]
    return TensorSeen(shape=shape, dtype=dtype, mismatches=len(wrong), first=first)
