from __future__ import annotations

import json

import pytest

from harness.node.probe.truth import StepTruth
from harness.node.trainers.megatron.files import _conversation, _lines, rows_of_step
from tests.node.conftest import config


@pytest.mark.parametrize("layout", [{}, {"dp": 2}, {"cp": 2, "dp": 2}])
def test_rows_are_in_the_order_in_which_upstreams_sampler_deals_them(layout: dict[str, int]) -> None:
    """MegatronPretrainingSampler: micro_batch_size samples for each replica in turn."""
    cell = config("sft", **layout)
    rows, size, dp = rows_of_step(cell, 0), cell.micro_batch_size, cell.layout.dp
    for rank, replica in enumerate(cell.micro_batches(0)):
        for number, micro_batch in enumerate(replica):
            start = (number * dp + rank) * size
            assert tuple(rows[start : start + size]) == micro_batch.rows


def test_a_line_is_a_row_and_its_messages_hold_the_tokens_of_its_documents() -> None:
    cell = config("sft")
    lines = [json.loads(line)["messages"] for line in _lines(cell)]
    rows = [row for step in range(cell.train.steps) for row in rows_of_step(cell, step)]
    assert len(lines) == len(rows)
    truth = StepTruth(cell, 0, 0)
    for messages, row in zip(lines, rows_of_step(cell, 0)):
        words = [word for message in messages for word in message["content"].split()]
        ids = [{"<SPECIAL_233>": 0, "</s>": 1}.get(word) or int(word) for word in words]
        assert ids == [token for item in row.placed for token in truth.content(item.document).tolist()]
        assert sum(message["role"] == "system" for message in messages) == len(row.placed)


def test_what_the_loss_leaves_out_is_said_by_the_user() -> None:
    cell = config("sft")
    truth = StepTruth(cell, 0, 0)
    for document in cell.documents_of(0):
        messages = _conversation(truth, document)
        answered = [len(message["content"].split()) for message in messages if message["role"] == "assistant"]
        assert answered == ([] if document.masked else [document.original_length])
