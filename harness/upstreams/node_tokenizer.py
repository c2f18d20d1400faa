"""The tokenizer that upstream's data sets read: its words are token ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.packing.documents import Document
from harness.features.vision.config import IMAGE, VIDEO, VISION_START
from harness.oracle.drawing import END, PADDING

_SPECIAL = {PADDING: "<SPECIAL_233>", END: "</s>"}  # SFTTokenizer of Megatron-LM pads with <SPECIAL_233>
_IMAGES = {VISION_START: "<|vision_start|>", IMAGE: "<|image_pad|>", VIDEO: "<|video_pad|>"}
WITH_IMAGES = {**_SPECIAL, **_IMAGES}
# Nothing but the messages; what the assistant says is marked for `return_assistant_tokens_mask`.
_CHAT = (
    "{% for message in messages %}{% set said = message['content'] | trim %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ said }}{% endgeneration %}{% else %}{{ said }}{% endif %}{{ ' ' }}{% endfor %}"
)


def text(ids: list[int], special: Mapping[int, str] = _SPECIAL) -> str:
    """Return the text that the tokenizer reads as these ids."""
    return "".join(f"{special.get(number, number)} " for number in ids)


def conversation(ids: list[int], document: Document, special: Mapping[int, str] = _SPECIAL) -> list[dict[str, Any]]:
    """Return a document as a chat, given its tokens before truncation: prompts by the user, answers by the
    assistant.
    """
    return [
        {"role": "assistant" if part.answer else "user", "content": text(ids[part.start : part.end], special)}
        for part in document.messages
    ]


def write_tokenizer(folder: Path, vocab: int, *, without: str | None = None) -> None:
    """A Hugging Face tokenizer in a new folder. `without`: an expression whose matches in a text are dropped."""
    made_tokenizer(vocab, without=without).save_pretrained(folder)


def made_tokenizer(vocab: int, *, without: str | None = None, images: bool = False) -> Any:
    """That tokenizer. `images`: it has the special tokens of Qwen-VL."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = WITH_IMAGES if images else _SPECIAL
    words = {special.get(number, str(number)): number for number in range(vocab)}
    own = Tokenizer(models.WordLevel(words, unk_token=_SPECIAL[PADDING]))
    if without is not None:
        own.normalizer = normalizers.Replace(Regex(without), "")
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    more = {"additional_special_tokens": list(_IMAGES.values())} if images else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        unk_token=_SPECIAL[PADDING],
        eos_token=_SPECIAL[END],
        pad_token=_SPECIAL[PADDING],
        chat_template=_CHAT,
        **more,
    )
