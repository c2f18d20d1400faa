"""Rows of `sft` from upstream's own SFTDataset, whose truncation, padding and masks are thus under test.

One row of the packing plan is one line of the fine-tuning data: the row's documents are the line's conversations, and
their tokens come from the harness's tokenizer. SFTDataset and torch's DataLoader do the rest, as in Megatron's training
loop. SFTDataset is in the same module in checkouts (core_v0.16 to main of 2026-08) and wheels (from 0.17).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from megatron.core.datasets.utils import Split
from torch import Tensor
from torch.utils.data import DataLoader

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.core.packing.options import align_up
from harness.node.probe.truth import StepTruth
from harness.oracle.drawing import END

DATASET_MODULE = "megatron.training.datasets.sft_dataset"

Message = dict[str, str]


class DocumentTokenizer:
    """The part of a tokenizer that SFTDataset uses (megatron.core.tokenizers' SFTTokenizer).

    A conversation is one system message whose content is the index of a document in the step.
    """

    eod = END

    def __init__(self, truth: StepTruth, ignored: int) -> None:
        self.truth = truth
        self.pad = truth.pad_id
        self.unique_identifiers: dict[str, str] = {}
        self.ignored = ignored  # upstream's IGNORE_INDEX: a target that is masked out of the loss
        self.vocab_size = truth.config.model.vocab
        self.multiple = truth.config.options.pad_seq_to_mult or 1
        self.documents = {item.document.index: item.document for plan in truth.plans for item in plan.placed}

    def tokenize_conversation(
        self, conversation: list[Message], return_target: bool, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """(tokens, targets), both int64 [tokens], before truncation; the prompts are masked.

        With pad_seq_to_mult, padding is part of the data, as in a data set prepared for that multiple.
        """
        document = self.documents[int(conversation[0]["content"])]
        tokens = self.truth.content(document)
        targets = tokens.clone()
        for message in document.messages:
            if not message.answer:
                targets[message.start : message.end] = self.ignored
        missing = align_up(len(tokens), self.multiple) - len(tokens)
        padding = torch.full((missing,), self.pad)
        return torch.cat([tokens, padding]), torch.cat([targets, padding])


def lines_of(truth: StepTruth) -> list[list[Message]]:
    """One line of the fine-tuning data per row of the step, in order; each conversation is one system message."""
    return [[_message(item.document) for item in row.placed] for plan in truth.plans for row in plan.rows]


def _message(document: Document) -> Message:
    return {"role": "system", "content": str(document.index)}


def rows(truth: StepTruth) -> Iterator[dict[str, Tensor]]:
    """Micro-batches of the step as upstream's loader collates them: micro_batch_size stacked rows each."""
    upstream: Any = importlib.import_module(DATASET_MODULE)
    lines = lines_of(truth)
    dataset = upstream.SFTDataset(
        dataset=lines,
        dataset_path=None,
        indices=range(len(lines)),
        num_samples=len(lines),
        index_split=Split.train,
        config=_dataset_config(truth.config, DocumentTokenizer(truth, upstream.IGNORE_INDEX)),
    )
    size = truth.config.micro_batch_size
    blocks = [list(range(start, start + size)) for start in range(0, len(lines), size)]
    return iter(DataLoader(dataset, batch_sampler=blocks))


def _dataset_config(config: CellConfig, tokenizer: DocumentTokenizer) -> GPTDatasetConfig:
    """As pretrain_gpt.core_gpt_dataset_config_from_args makes it."""
    return GPTDatasetConfig(
        random_seed=config.train.seed,
        sequence_length=config.train.seq_length,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        context_parallel_size=config.layout.cp,
        data_parallel_size=config.layout.dp,
        sequence_parallel_size=config.layout.tp if config.layout.sp else 0,
    )
