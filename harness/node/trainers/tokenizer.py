"""The tokenizer that upstream's data sets read: its words are token ids."""

from __future__ import annotations

from pathlib import Path

from harness.core.packing.documents import Document
from harness.node.probe.weights import END, PADDING

_SPECIAL = {PADDING: "<SPECIAL_233>", END: "</s>"}  # SFTTokenizer of Megatron-LM pads with <SPECIAL_233>
# Nothing but the messages; what the assistant says is marked for `return_assistant_tokens_mask`.
_CHAT = (
    "{% for message in messages %}{% set said = message['content'] | trim %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ said }}{% endgeneration %}{% else %}{{ said }}{% endif %}{{ ' ' }}{% endfor %}"
)


def text(ids: list[int]) -> str:
    """The text that the tokenizer reads as these ids."""
    return "".join(f"{_SPECIAL.get(number, number)} " for number in ids)


def conversation(ids: list[int], document: Document) -> list[dict[str, str]]:
    """A document as a chat, given its tokens before truncation: prompts by the user, answers by the assistant."""
    return [
        {"role": "assistant" if part.answer else "user", "content": text(ids[part.start : part.end])}
        for part in document.messages
    ]


def write_tokenizer(folder: Path, vocab: int, *, without: str | None = None) -> None:
    """A Hugging Face tokenizer in a new folder. `without`: an expression whose matches in a text are dropped."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {_SPECIAL.get(number, str(number)): number for number in range(vocab)}
    own = Tokenizer(models.WordLevel(words, unk_token=_SPECIAL[PADDING]))
    if without is not None:
        own.normalizer = normalizers.Replace(Regex(without), "")
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=own,
        unk_token=_SPECIAL[PADDING],
        eos_token=_SPECIAL[END],
        pad_token=_SPECIAL[PADDING],
        chat_template=_CHAT,
    ).save_pretrained(folder)
