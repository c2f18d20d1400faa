"""Megatron-Bridge's collator of Qwen-VL, which packs documents with images in batch, from 0.6 on.

Upstream reads chats with a Hugging Face processor and finds images in them with qwen_vl_utils. Here the processor is
the harness's tokenizer, and an image of a chat is the patches that it would make. Rows, labels, loss masks (of answers,
without the tokens of images) and metadata are upstream's.
"""

from __future__ import annotations

import importlib
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.node.probe.truth import MicroTruth, StepTruth
from harness.node.trainers.tokenizer import WITH_IMAGES, conversation, made_tokenizer

MODULE = "models.qwen_vl.data.collate_fn"


class QwenCollator:
    """Calls qwen2_5_collate_fn, which upstream registers for processors of Qwen2.5-VL and Qwen3-VL."""

    def __init__(self, config: CellConfig) -> None:
        self.config = config
        self.module = importlib.import_module(f"megatron.bridge.{MODULE}")
        self.processor = _Processor(config.model.vocab)

    def collated(self, truth: StepTruth, micro: MicroTruth) -> dict[str, Any]:
        """A micro-batch as the training step gets it."""
        with patch.multiple(self.module, create=True, HAVE_QWEN_VL_UTILS=True, process_vision_info=_images_of):
            batch: dict[str, Any] = self.module.qwen2_5_collate_fn(
                [_example(truth, item.document) for item in micro.plan.placed],
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
        """One text and its images, [patches, values] and patches along each axis."""
        found: dict[str, Tensor] = {"input_ids": torch.tensor([self.tokenizer(text[0])["input_ids"]])}
        if images:
            found |= {"pixel_values": torch.cat([pixels for pixels, _ in images])}
            found |= {"image_grid_thw": torch.tensor([grid for _, grid in images])}
        return found
