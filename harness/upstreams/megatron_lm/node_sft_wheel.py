"""`sft` with a megatron-core wheel: its batch functions in the order of the release's own pretrain_gpt.

A wheel does not contain pretrain_gpt.py. The code here that connects upstream's functions follows the release's
get_batch and the part of its forward_step that makes PackedSeqParams, including its bugs.

| release | recognised by | get_batch |
|---|---|---|
| 0.17 | megatron.training.utils.get_batch_on_this_tp_rank | reads the iterator; get_thd_batch_on_this_cp_rank |
| 0.18 | megatron.core.utils.get_batch_on_this_tp_rank(is_sft) | takes a batch; cu_seqlens[0] |
| 0.19 | flatten_batch_for_packed_sequences | merges the rows of a micro-batch; squeeze(0), tokens_per_sample |
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import megatron.core.utils as core
import torch
from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from megatron.core.datasets.utils import Split
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor
from torch.utils.data import DataLoader

from harness.core.cell.config import CellConfig
from harness.core.packing.fields import BATCH
from harness.core.packing.options import align_up
from harness.oracle.drawing import END
from harness.probe.truth import StepTruth
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable, module_unavailable

DATASET_MODULE = "megatron.training.datasets.sft_dataset"

Message = dict[str, str]


# Rows of `sft` from upstream's own SFTDataset, whose truncation, padding and masks are thus under test.
#
# One row of the packing plan is one line of the fine-tuning data: the row's documents are the line's conversations, and
# their tokens come from the harness's tokenizer. SFTDataset and torch's DataLoader do the rest, as in Megatron's
# training loop. SFTDataset is in the same module in checkouts (core_v0.16 to main of 2026-08) and wheels (from 0.17).
class DocumentTokenizer:
    """The part of a tokenizer that SFTDataset uses (megatron.core.tokenizers' SFTTokenizer).

    A conversation is one system message whose content is the index of a document in the step.
    """

    eod = END

    def __init__(self, truth: StepTruth, ignored: int) -> None:
        self.truth = truth
        self.pad = truth.pad_id
        # Upstream hashes a data set's configuration, its tokenizer included, by this attribute.
        self.unique_identifiers: dict[str, str] = {}
        self.ignored = ignored  # upstream's IGNORE_INDEX: a target that is masked out of the loss
        self.vocab_size = truth.config.model.vocab
        self.multiple = truth.config.options.pad_seq_to_mult or 1
        self.documents = {placed.document.index: placed.document for plan in truth.plans for placed in plan.placed}

    def tokenize_conversation(
        self, conversation: list[Message], return_target: bool, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Return (tokens, targets), both int64 [tokens], before truncation; the prompts are masked.

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
    """Return one line of the fine-tuning data per row of the step, in order.

    Each conversation is one system message.
    """
    rows = [row for plan in truth.plans for row in plan.rows]
    return [[{"role": "system", "content": str(placed.document.index)} for placed in row.placed] for row in rows]


def rows(truth: StepTruth) -> Iterator[dict[str, Tensor]]:
    """Return the micro-batches of the step as upstream's loader collates them: micro_batch_size stacked rows each."""
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
    # Not `batch_size`: a sampler of blocks keeps the plan's order and drops nothing.
    blocks = [list(range(start, start + size)) for start in range(0, len(lines), size)]
    return iter(DataLoader(dataset, batch_sampler=blocks))


def _dataset_config(config: CellConfig, tokenizer: DocumentTokenizer) -> GPTDatasetConfig:
    """Build the configuration as pretrain_gpt.core_gpt_dataset_config_from_args does."""
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


KEYS = (
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
)  # pretrain_gpt.BATCH_KEYS
_METADATA = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")


def unavailable() -> Unavailable:
    """Return why this wheel cannot run `sft`; None when it can. Imports what the path needs."""
    root = "megatron.core"
    if reason := module_unavailable(DATASET_MODULE, root) or module_unavailable("megatron.training.utils", root):
        return reason
    if hasattr(core, "get_batch_on_this_tp_rank"):
        return module_unavailable("megatron.core.utils", root, "get_batch_on_this_cp_rank")
    return module_unavailable("megatron.training.utils", root, "get_batch_on_this_tp_rank") or module_unavailable(
        "megatron.core.utils", root, "get_thd_batch_on_this_cp_rank"
    )


class Wheel:
    """Serves one rank."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.reads_batch = hasattr(core, "get_batch_on_this_tp_rank")  # 0.18 and later
        if not self.reads_batch:
            _set_arguments(context)

    @property
    def _predicts(self) -> bool:
        """Whether this stage holds the layers of multi-token prediction."""
        layout = self.context.config.layout
        return self.context.config.model.mtp is not None and self.context.place.pp == layout.prediction_stage

    def batch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        middle = not (self.context.reads_tokens(chunk) or self.context.reads_labels(chunk))
        return self._of_batch(iterator, middle) if self.reads_batch else self._of_iterator(iterator, middle)

    def _of_iterator(self, iterator: Iterator[Any] | None, middle: bool) -> Batch:
        """Follow pretrain_gpt.get_batch of core_v0.17.1, with args.sft."""
        training: Any = importlib.import_module("megatron.training.utils")
        batch = training.get_batch_on_this_tp_rank(iterator, mtp_on_this_rank=self._predicts)
        cu_seqlens, longest = batch.pop("cu_seqlens", None), batch.pop("max_seqlen", None)
        padded = batch.pop("cu_seqlens_padded", None)
        batch.pop("local_cp_size", None)
        if cu_seqlens is not None:
            # Upstream's assertions, with their texts: this release crashes here in the same way.
            assert cu_seqlens.dim() == 2 and cu_seqlens.shape[0] == 1, "micro-batch-size must be 1 for packing"
            cu_seqlens = cu_seqlens[0]
            assert longest.dim() == 1
        if middle:
            longest = int(longest[0].item())
            return Batch(params=_thd(cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens, longest=longest))
        if cu_seqlens is None:
            return _with(core.get_batch_on_this_cp_rank(batch), None)
        return _with(*core.get_thd_batch_on_this_cp_rank(batch, cu_seqlens, padded, longest))

    def _of_batch(self, iterator: Iterator[Any] | None, middle: bool) -> Batch:
        """Follow pretrain_gpt.get_batch and forward_step of core_v0.18.2 and core_v0.19.0, with args.sft."""
        batch: dict[str, Any] = {}
        if self.context.place.tp == 0:
            assert iterator is not None
            batch = next(iterator)
            device = self.context.device.torch_device
            for key in KEYS:
                batch[key] = batch[key].to(device) if batch.get(key) is not None else None
        batch = core.get_batch_on_this_tp_rank(batch, **self._broadcast_arguments())
        if hasattr(core, "flatten_batch_for_packed_sequences"):
            batch = core.flatten_batch_for_packed_sequences(batch)
        if middle:
            return Batch(params=self._params(*(batch[name] for name in _METADATA)))
        group = parallel_state.get_context_parallel_group()
        batch = core.get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=group)
        return _with(batch, self._params(*(batch[name] for name in _METADATA)))

    def _broadcast_arguments(self) -> dict[str, Any]:
        config = self.context.config
        arguments = {
            "is_sft": True,  # 0.18
            "has_cu_seqlens": True,  # the same from 0.19 on
            "is_hybrid_cp": False,
            "create_attention_mask_in_dataloader": False,
            "broadcast_src_rank": parallel_state.get_tensor_model_parallel_src_rank(),
            "broadcast_group": parallel_state.get_tensor_model_parallel_group(),
            "cp_size": config.layout.cp,
            "tp_rank": self.context.place.tp,
            "micro_batch_size": config.micro_batch_size,
            "seq_length": config.train.seq_length,
            "mtp_on_this_rank": self._predicts,
            "pipeline_model_parallel_size": config.layout.pp,
            "is_pipeline_first_stage": parallel_state.is_pipeline_first_stage(),
            "is_pipeline_last_stage": parallel_state.is_pipeline_last_stage(),
        }
        accepted = inspect.signature(core.get_batch_on_this_tp_rank).parameters
        return {name: value for name, value in arguments.items() if name in accepted}

    def _params(self, cu_seqlens: Any, padded: Any, longest: Any) -> PackedSeqParams | None:
        """Return packed params; padded offsets, if any, replace the real ones, as in upstream's forward_step."""
        if cu_seqlens is None:
            return None
        squeezes = hasattr(core, "flatten_batch_for_packed_sequences")
        cu_seqlens = cu_seqlens.squeeze(0) if squeezes else cu_seqlens[0]
        if padded is not None:
            padded = padded.squeeze(0) if squeezes else padded[0]
        chosen = cu_seqlens if padded is None else padded
        accepted = inspect.signature(PackedSeqParams).parameters
        extra = {"tokens_per_sample": self.context.config.train.seq_length} if "tokens_per_sample" in accepted else {}
        if self.context.config.model.hybrid:  # pretrain_hybrid.py alone passes it
            extra["total_tokens"] = int(chosen[-1].item())
        return _thd(
            cu_seqlens_q=chosen,
            cu_seqlens_kv=chosen,
            cu_seqlens_q_padded=padded,
            cu_seqlens_kv_padded=padded,
            longest=int(longest.item()),
            **extra,
        )


def _thd(longest: int, **fields: Any) -> PackedSeqParams:
    return PackedSeqParams(qkv_format="thd", max_seqlen_q=longest, max_seqlen_kv=longest, **fields)


def _with(batch: dict[str, Any], params: PackedSeqParams | None) -> Batch:
    return Batch(**{name: batch.get(name) for name in BATCH}, params=params)


def _set_arguments(context: RankContext) -> None:
    """Set the global arguments that megatron.training.utils.get_batch_on_this_tp_rank of 0.17 reads."""
    config = context.config
    variables: Any = importlib.import_module("megatron.training.global_vars")
    variables.set_args(
        SimpleNamespace(
            sft=True,
            hybrid_context_parallel=False,
            create_attention_mask_in_dataloader=False,
            pipeline_model_parallel_size=config.layout.pp,
            micro_batch_size=config.micro_batch_size,
            seq_length=config.train.seq_length,
        )
    )
