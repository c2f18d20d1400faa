"""Packed rows for upstream's fine-tuning data set: conversations of a cell's documents.

A line of the JSONL file is a row of the packing plan, in the order in which MegatronPretrainingSampler deals rows to
replicas. Each document is a conversation: an empty system message, then prompts by the user and answers by the
assistant in turn. A token's text is its id. The tokenizer drops the markers that upstream's chat template puts around
messages, so that upstream, by its own code, makes the tokens and masks of the plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import Row
from harness.core.packing.documents import Document
from harness.core.packing.options import align_up
from harness.node.probe.truth import StepTruth
from harness.node.trainers.tokenizer import conversation, text

PROMPT_FORMAT = "nemotron-h-aligned"  # of SFTTokenizer from core_v0.16 on; `identity` does not always mask prompts
MARKERS = r"<SPECIAL_1[01]>(System|User|Assistant)"  # of its template
SUFFIX = ".jsonl"


def write(place: Path, config: CellConfig, rows: Sequence[tuple[int, Row]]) -> None:
    """Write `place` with the suffix; `rows`: each with its step, in order."""
    Path(f"{place}{SUFFIX}").write_text("".join(lines(config, rows)), encoding="utf-8")


def lines(config: CellConfig, rows: Sequence[tuple[int, Row]]) -> list[str]:
    truths = {step: StepTruth(config, step, 0) for step, _ in rows}
    said = [
        [message for item in row.placed for message in messages_of(truths[step], item.document)] for step, row in rows
    ]
    return [json.dumps({"messages": messages}) + "\n" for messages in said]


def messages_of(truth: StepTruth, document: Document) -> list[dict[str, str]]:
    """The messages of a document; with pad_seq_to_mult, padding is part of the last one."""
    ids = truth.content(document).tolist()
    padding = [truth.pad_id] * (align_up(len(ids), truth.config.options.pad_seq_to_mult or 1) - len(ids))
    spoken = conversation(ids, document)
    spoken[-1]["content"] += text(padding)
    return [{"role": "system", "content": ""}, *spoken]
