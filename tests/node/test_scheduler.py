from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.node.data_paths.scheduler import MODULE, SchedulerPath, _hold_against_plan, share
from harness.node.probe.truth import StepTruth
from harness.words.documents import Document
from tests.node.conftest import config


def test_a_release_without_the_scheduler_cannot_serve_it() -> None:
    assert f"has no {MODULE}.wrap_data_iterator" in (SchedulerPath.unavailable(config("scheduler")) or "")


@given(count=st.integers(0, 30), dp=st.integers(1, 5))
def test_replicas_together_read_every_document_once_and_in_order(count: int, dp: int) -> None:
    documents = [Document(index=index, length=1, original_length=1) for index in range(count)]
    assert [one for replica in range(dp) for one in share(documents, dp, replica)] == documents


def test_what_the_scheduler_returns_is_held_against_the_plan() -> None:
    truth = StepTruth(config("scheduler", cp=2, dp=2), 0, 1)
    lengths = [
        item.padded_length for replica in truth.config.micro_batches(0) for one in replica for item in one.placed
    ]
    right = (len(truth.plans), float(sum(lengths)), float(sum(length**2 for length in lengths)))
    _hold_against_plan(truth, *right)
    for place, name in enumerate(("number of micro-batches", "sum of lengths", "sum of squared lengths")):
        wrong = [value + (index == place) for index, value in enumerate(right)]
        with pytest.raises(ValueError, match=f"as the {name}, expected"):
            _hold_against_plan(truth, *wrong)
