"""Packed rows for upstream's fine-tuning data set: conversations of a cell's documents.

A line of the JSONL file is a row of the packing plan, in the order in which MegatronPretrainingSampler deals rows to
replicas. Each document is a conversation: an empty system message, a user message with the tokens that the loss leaves
out, and the assistant's answer. A token's text is its id. The tokenizer drops the markers that upstream's chat template
puts around messages, so that upstream, by its own code, makes the tokens and masks of the plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import Row
from harness.core.packing.documents import Document
from harness.core.packing.styles import align_up
from harness.node.probe.truth import StepTruth
from harness.node.trainers.tokenizer import text

PROMPT_FORMAT = "nemotron-h-aligned"  # of SFTTokenizer from core_v0.16 on; `identity` does not always mask prompts
MARKERS = r"<SPECIAL_1[01]>(System|User|Assistant)"  # of its template
SUFFIX = ".jsonl"


def write(place: Path, config: CellConfig, rows: Sequence[tuple[int, Row]]) -> None:
    """Write `place` with the suffix; `rows`: each with its step, in order."""
    Path(f"{place}{SUFFIX}").write_text("".join(lines(config, rows)), encoding="utf-8")


def lines(config: CellConfig, rows: Sequence[tuple[int, Row]]) -> list[str]:
    truths = {step: StepTruth(config, step, 0) for step, _ in rows}
    return [
        json.dumps(
            {"messages": [message for item in row.placed for message in conversation(truths[step], item.document)]}
        )
        + "\n"
        for step, row in rows
    ]


def conversation(truth: StepTruth, document: Document) -> list[dict[str, str]]:
    """The first token is a prompt, as in every chat: no label predicts it. With pad_seq_to_mult, padding is data."""
    ids = truth.content(document).tolist()
    prompt = len(ids) if document.masked else 1
    ids += [truth.pad_id] * (align_up(len(ids), truth.config.options.pad_seq_to_mult or 1) - len(ids))
    spoken = [("system", []), ("user", ids[:prompt]), ("assistant", ids[prompt:])]
    return [{"role": role, "content": text(part)} for role, part in spoken if part or role == "system"]
