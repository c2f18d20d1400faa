"""Megatron-Bridge in-batch packing: the padded rows of a micro-batch become one packed row, by upstream's functions.

| megatron-bridge | switch of the dataset | packs in | training step |
|---|---|---|---|
| 0.4, 0.5 | pack_sequences_in_batch | training.vlm_step.get_batch: pack_batch_sequences | vlm_step |
| 0.6 | enable_in_batch_packing | collators: data.collators.sequence.prepare_sequence_batch | gpt_step |

Upstream's collators make right-padded rows with a mask; here the rows are a micro-batch's documents. With images the
step is vlm_step in every release, and from 0.6 on the collator is that of Qwen-VL, `QwenCollator` below.
Up to 0.5 only vlm_step packs in batch: it passes only padded offsets, gives tokens to every stage, and leaves the split
over context-parallel ranks to the model. Documents are padded to the multiple that vlm_step computes, and that
ConfigContainer.validate of 0.6 sets as in_batch_packing_pad_to_multiple_of.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.core.packing.fields import BATCH
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.megatron_bridge.node_step import BridgeStep, missing
from harness.upstreams.megatron_bridge.node_vision import VisionStep, tokens_found, with_images
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable, none_of, not_in_release, release
from harness.upstreams.node_tokenizer import WITH_IMAGES, conversation, made_tokenizer

MODULE = "models.qwen_vl.data.collate_fn"


# Megatron-Bridge's collator of Qwen-VL, which packs documents with images in batch, from 0.6 on.
#
# Upstream reads chats with a Hugging Face processor and finds images in them with qwen_vl_utils. Here the processor is
# the harness's tokenizer, and an image of a chat is the patches that it would make. Rows, labels, loss masks (of
# answers, without the tokens of images) and metadata are upstream's.
class QwenCollator:
    """Calls qwen2_5_collate_fn, which upstream registers for processors of Qwen2.5-VL and Qwen3-VL."""

    def __init__(self, config: CellConfig) -> None:
        self.config = config
        self.module = importlib.import_module(f"megatron.bridge.{MODULE}")
        self.processor = _Processor(config.model.vocab)

    def collated(self, truth: StepTruth, micro: MicroTruth) -> dict[str, Any]:
        """Return a micro-batch as the training step gets it."""
        with patch.multiple(self.module, create=True, HAVE_QWEN_VL_UTILS=True, process_vision_info=_images_of):
            batch: dict[str, Any] = self.module.qwen2_5_collate_fn(
                [_example(truth, placed.document) for placed in micro.plan.placed],
                self.processor,
                sequence_length=self.config.train.seq_length,
                enable_in_batch_packing=True,
                in_batch_packing_pad_to_multiple_of=self.config.style.document_multiple,
            )
        return batch


def _example(truth: StepTruth, document: Document) -> dict[str, Any]:
    ids = truth.content(document)[: document.length + 1].tolist()
    turns = conversation(ids, document, WITH_IMAGES)
    turns[0]["images"] = list(zip(truth.pixels(document), (image.grid for image in document.images), strict=True))
    return {"conversation": turns}


def _images_of(turns: list[dict[str, Any]]) -> tuple[list[Any], None]:
    """Stub of qwen_vl_utils.process_vision_info: images and videos of a chat."""
    return turns[0]["images"], None


class _Processor:
    """Stub of a Hugging Face processor whose text has as many image tokens as its images need."""

    def __init__(self, vocab: int) -> None:
        self.tokenizer = made_tokenizer(vocab, images=True)
        self.apply_chat_template = self.tokenizer.apply_chat_template

    def __call__(self, text: list[str], images: list[Any] | None = None, **_: Any) -> dict[str, Tensor]:
        """Return one text and its images, [patches, values] and patches along each axis."""
        features: dict[str, Tensor] = {"input_ids": torch.tensor([self.tokenizer(text[0])["input_ids"]])}
        if images:
            features |= {"pixel_values": torch.cat([pixels for pixels, _ in images])}
            features |= {"image_grid_thw": torch.tensor([grid for _, grid in images])}
        return features


class BridgeInBatchPath:
    """Pack the padded rows of a micro-batch by upstream's collators and training step."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.prepare = _prepare_sequence_batch()
        self.micro: MicroTruth | None = None  # the last one that was read
        self.collator = QwenCollator(context.config) if context.config.model.vision and self.prepare else None
        self.step = self._step(_dataset(context))

    def _step(self, dataset: Any) -> BridgeStep:
        if self.context.config.model.vision:
            return VisionStep(self.context, dataset)
        return BridgeStep(self.context, dataset, "vlm_step" if self.prepare is None else "gpt_step")

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        # Either way of packing in batch will do; only if both are missing does this release lack it.
        collate = missing("data.collators.sequence", "training.gpt_step", "data.builders.mock_vlm_sft")
        in_step = missing("training.vlm_step", "data.vlm_datasets.mock_provider")
        if collate and in_step:
            return none_of(collate, in_step)
        return _split_by_model(config) if collate else None

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[dict[str, Any]]:
        """Yield all micro-batches of the replica: every rank reads them."""
        return (self._collated(truth, micro) for micro in truth.micro_batches)

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        if not isinstance(self.step, VisionStep):
            return self.step.batch(iterator, chunk)
        batch = self.step.whole(iterator, chunk)
        if batch.tokens is not None and self.micro is not None:
            layout, place = self.context.config.layout, self.context.place
            batch.tokens = tokens_found(batch.tokens, self.micro, layout.cp, place.cp)
        return batch

    def _collated(self, truth: StepTruth, micro: MicroTruth) -> dict[str, Any]:
        """Return a micro-batch as upstream's collators pass it to the training step."""
        self.micro = micro
        if self.collator is not None:
            return self.collator.collated(truth, micro)
        batch = right_padded(micro)
        if self.context.config.model.vision:
            return with_images(batch, micro)
        if self.prepare is not None:
            self.prepare(
                batch,
                sequence_length=self.context.config.train.seq_length,
                enable_in_batch_packing=True,
                in_batch_packing_pad_to_multiple_of=self.context.config.style.document_multiple,
            )
        return batch


def _split_by_model(config: CellConfig) -> Unavailable:
    cp = config.layout.cp
    if cp == 1 or config.model.vision:
        return None
    return not_in_release(
        f"cp {cp}: vlm_step of {release('megatron.bridge')} passes the whole row to every context-parallel rank; only "
        "its vision-language models split it in their forward (slice_batch_for_context_parallel), the probe's GPT does "
        "not; set cp to 1, or use release 0.6 or later",
        "megatron.bridge",
    )


def right_padded(micro: MicroTruth) -> dict[str, Any]:
    """Return each field padded to [documents, longest], and `attention_mask` of the same shape, 1 where a token is
    real.
    """
    placed = micro.plan.placed
    lengths = [placed_document.document.length + micro.plan.style.last_token_slots for placed_document in placed]
    shape = len(placed), max(lengths)
    batch: dict[str, Any] = {"attention_mask": torch.zeros(shape, dtype=torch.int64)}
    for name in BATCH:
        stream: Tensor = getattr(micro, name)
        stream = stream[:, 0] if stream.dim() > 1 else stream  # positions that the model computes again
        batch[name] = torch.full(shape, micro.pad_id if name in ("tokens", "labels") else 0, dtype=stream.dtype)
        for row, placed_document in enumerate(placed):
            length = lengths[row]
            batch[name][row, :length] = stream[placed_document.start : placed_document.start + length]
            batch["attention_mask"][row, :length] = 1
    return batch


def _prepare_sequence_batch() -> Any:
    """Return upstream's function of this name; None up to 0.5, where the training step packs."""
    try:
        from megatron.bridge.data.collators.sequence import prepare_sequence_batch
    except ModuleNotFoundError:
        return None
    return prepare_sequence_batch


def _dataset(context: RankContext) -> Any:
    """Return upstream's dataset configuration with in-batch packing on: the training step reads it, no data is
    loaded.
    """
    common: dict[str, Any] = {"seq_length": context.config.train.seq_length, "hf_processor_path": "none"}
    try:
        from megatron.bridge.data.builders.mock_vlm_sft import MockVLMSFTDatasetConfig
    except ModuleNotFoundError:
        from megatron.bridge.data.vlm_datasets.mock_provider import MockVLMConversationProvider

        return MockVLMConversationProvider(pack_sequences_in_batch=True, **common)
    return MockVLMSFTDatasetConfig(enable_in_batch_packing=True, **common)
