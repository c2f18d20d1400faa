"""The files that upstream's fine-tuning data set and tokenizer read: conversations of a cell's documents.

A line of the JSONL file is a row of the packing plan, in the order in which MegatronPretrainingSampler deals rows to
replicas. Each document is a conversation: an empty system message, then prompts by the user and answers by the
assistant in turn. A token's text is its id. The tokenizer drops the markers that upstream's chat template
puts around messages, so that upstream, by its own code, makes the tokens and masks of the plan.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.core.packing.styles import align_up
from harness.node.probe.truth import StepTruth
from harness.node.trainers.tokenizer import conversation, text, write_tokenizer

PROMPT_FORMAT = "nemotron-h-aligned"  # of SFTTokenizer from core_v0.16 on; `identity` does not always mask prompts
_MARKERS = r"<SPECIAL_1[01]>(System|User|Assistant)"  # of its template


def write_files(folder: Path, config: CellConfig) -> None:
    """Write `conversations`, `evaluated` if the cell evaluates, and `tokenizer` into a new folder."""
    folder.mkdir(parents=True)
    train = config.train
    conversations(folder).write_text("".join(_lines(config, range(train.steps))), encoding="utf-8")
    if train.evaluated:
        evaluated(folder).write_text("".join(_lines(config, range(train.steps, train.passes))), encoding="utf-8")
    write_tokenizer(tokenizer(folder), config.model.vocab, without=_MARKERS)


def conversations(folder: Path) -> Path:
    """The data set, of all steps."""
    return folder / "conversations.jsonl"


def evaluated(folder: Path) -> Path:
    """The data set of all evaluations."""
    return folder / "evaluation.jsonl"


def tokenizer(folder: Path) -> Path:
    """A Hugging Face tokenizer."""
    return folder / "tokenizer"


def _lines(config: CellConfig, steps: range) -> list[str]:
    lines = []
    for step in steps:
        truth = StepTruth(config, step, 0)
        for row in config.rows(step):
            messages = [message for item in row.placed for message in _conversation(truth, item.document)]
            lines.append(json.dumps({"messages": messages}) + "\n")
    return lines


def _conversation(truth: StepTruth, document: Document) -> list[dict[str, str]]:
    """With pad_seq_to_mult, padding is part of the last message."""
    ids = truth.content(document).tolist()
    padding = [truth.pad_id] * (align_up(len(ids), truth.config.options.pad_seq_to_mult or 1) - len(ids))
    spoken = conversation(ids, document)
    spoken[-1]["content"] += text(padding)
    return [{"role": "system", "content": ""}, *spoken]
