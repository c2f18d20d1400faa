"""The files that upstream's fine-tuning data set and tokenizer read: conversations of a cell's documents.

A line of the JSONL file is a row of the packing plan, in the order in which MegatronPretrainingSampler deals rows to
replicas. Each document is a conversation: an empty system message, a user message with the tokens that the loss leaves
out, and the assistant's answer. A token's text is its id. The tokenizer drops the markers that upstream's chat template
puts around messages, so that upstream, by its own code, makes the tokens and masks of the plan.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import Row
from harness.core.packing.documents import Document
from harness.core.packing.styles import align_up
from harness.node.probe.truth import StepTruth
from harness.node.probe.weights import END, PADDING

PROMPT_FORMAT = "nemotron-h-aligned"  # of SFTTokenizer from core_v0.16 on; unlike `identity`, it always masks prompts
_MARKERS = r"<SPECIAL_1[01]>(System|User|Assistant)"  # of its template
_SPECIAL = {PADDING: "<SPECIAL_233>", END: "</s>"}  # it pads with <SPECIAL_233>


def write_files(folder: Path, config: CellConfig) -> None:
    """Write `conversations` and `tokenizer` into a new folder."""
    folder.mkdir(parents=True)
    conversations(folder).write_text("".join(_lines(config)), encoding="utf-8")
    _write_tokenizer(tokenizer(folder), config.model.vocab)


def conversations(folder: Path) -> Path:
    """The data set, of all steps."""
    return folder / "conversations.jsonl"


def tokenizer(folder: Path) -> Path:
    """A Hugging Face tokenizer."""
    return folder / "tokenizer"


def rows_of_step(config: CellConfig, step: int) -> list[Row]:
    """The rows of a step in the order of the file; the global batch size of upstream."""
    replicas = config.micro_batches(step)
    return [row for group in zip(*replicas, strict=True) for micro_batch in group for row in micro_batch.rows]


def _lines(config: CellConfig) -> list[str]:
    lines = []
    for step in range(config.train.steps):
        truth = StepTruth(config, step, 0)
        for row in rows_of_step(config, step):
            messages = [message for item in row.placed for message in _conversation(truth, item.document)]
            lines.append(json.dumps({"messages": messages}) + "\n")
    return lines


def _conversation(truth: StepTruth, document: Document) -> list[dict[str, str]]:
    """The first token is a prompt, as in every chat: no label predicts it. With pad_seq_to_mult, padding is data."""
    ids = truth.content(document).tolist()
    prompt = len(ids) if document.masked else 1
    ids += [truth.pad_id] * (align_up(len(ids), truth.config.options.pad_seq_to_mult or 1) - len(ids))
    spoken = [("system", []), ("user", ids[:prompt]), ("assistant", ids[prompt:])]
    return [{"role": role, "content": _text(part)} for role, part in spoken if part or role == "system"]


def _text(ids: list[int]) -> str:
    return "".join(f"{_SPECIAL.get(number, number)} " for number in ids)


def _write_tokenizer(folder: Path, vocab: int) -> None:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {_SPECIAL.get(number, str(number)): number for number in range(vocab)}
    own = Tokenizer(models.WordLevel(words, unk_token=_SPECIAL[PADDING]))
    own.normalizer = normalizers.Replace(Regex(_MARKERS), "")
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token=_SPECIAL[PADDING], eos_token=_SPECIAL[END], pad_token=_SPECIAL[PADDING]
    ).save_pretrained(folder)
