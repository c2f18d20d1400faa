from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import Row
from harness.core.packing.documents import DocumentsMode, mix
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_lm.node_files import lines, messages_of
from tests.runtime.conftest import config


def rows_of(cell: CellConfig, steps: range) -> list[tuple[int, Row]]:
    return [(step, row) for step in steps for row in cell.rows(step)]


def test_a_line_is_a_row_and_its_messages_hold_the_tokens_of_its_documents() -> None:
    cell = config("sft")
    found = [json.loads(line)["messages"] for line in lines(cell, rows_of(cell, range(cell.train.steps)))]
    assert len(found) == sum(len(cell.rows(step)) for step in range(cell.train.steps))
    truth = StepTruth(cell, 0, 0)
    for messages, row in zip(found, cell.rows(0)):
        words = [word for message in messages for word in message["content"].split()]
        ids = [{"<SPECIAL_233>": 0, "</s>": 1}.get(word) or int(word) for word in words]
        assert ids == [token for item in row.placed for token in truth.content(item.document).tolist()]
        assert sum(message["role"] == "system" for message in messages) == len(row.placed)


def test_evaluations_have_rows_of_their_own() -> None:
    cell = config("sft")
    train = replace(cell.train, eval_interval=1)
    cell = replace(cell, train=train)
    trained = lines(cell, rows_of(cell, range(train.steps)))
    after = lines(cell, rows_of(cell, range(train.steps, train.passes)))
    each = len(cell.rows(0))
    assert (len(trained), len(after)) == (each * train.steps, each * len(train.evaluated))
    assert not set(trained) & set(after)


@pytest.mark.parametrize("mode", ["adversarial", "multi_turn"])
def test_what_the_loss_leaves_out_is_said_by_the_user(mode: DocumentsMode) -> None:
    cell = replace(config("sft"), documents=mix(mode, 64, 2))
    truth = StepTruth(cell, 0, 0)
    for document in cell.documents_of(0):
        messages = messages_of(truth, document)
        answered = [len(message["content"].split()) for message in messages if message["role"] == "assistant"]
        assert answered == [part.end - part.start for part in document.messages if part.answer]
        assert [message["role"] for message in messages[1:]] == [
            "assistant" if part.answer else "user" for part in document.messages
        ]
