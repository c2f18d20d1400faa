"""Out-of-memory figures, from messages of torch."""

from __future__ import annotations

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.run.records import Failure, RankRecord
from harness.judge.failures.classification import memory_text, out_of_memory, size_text, tried_bytes
from tests.judge.failures.test_classification import text_of


def failure(name: str) -> Failure:
    """The exception of a recorded text."""
    type_name, _, message = text_of(name).partition(": ")
    return Failure(type=type_name, message=message, traceback="", time=1.0)


@pytest.mark.parametrize(
    ("name", "tried"),
    [
        ("gpu-out-of-memory.exception", round(22.78 * 2**30)),
        ("gpu-out-of-memory.older.exception", 22 * 2**20),
        ("gpu-out-of-memory.cublas.exception", None),
        ("host-out-of-memory.exception", 4_000_000_000_000_000),
    ],
)
def test_messages_of_torch_contain_the_size_that_was_tried(name: str, tried: int | None) -> None:
    seen = failure(name)
    assert out_of_memory(seen)
    assert tried_bytes(seen.message) == tried


def test_other_exceptions_are_not_about_memory() -> None:
    assert not out_of_memory(None)
    assert not out_of_memory(failure("gpu-memory-access.exception"))


def test_the_text_has_the_size_tried_the_peak_and_the_limit() -> None:
    record = RankRecord(cell="c", rank=0, place=Coordinates(tp=0, cp=0, dp=0, pp=0))
    record.failure = failure("gpu-out-of-memory.older.exception")
    record.peak_memory_bytes, record.peak_reserved_bytes = 100 * 2**30, 103 * 2**30
    record.environment["memory_limit_bytes"] = str(139 * 2**30)
    assert memory_text(record) == "tried to allocate 22 MiB in one piece; peak 100 GiB, 103 GiB reserved, of 139 GiB"
    record.peak_reserved_bytes = None
    record.failure = failure("gpu-out-of-memory.cublas.exception")
    assert memory_text(record) == "peak 100 GiB, of 139 GiB"


def test_sizes_are_in_the_largest_unit_that_they_reach() -> None:
    assert [size_text(count) for count in (512, 1536, 3 * 2**20, 1.5 * 2**30)] == [
        "512 bytes",
        "1.5 KiB",
        "3 MiB",
        "1.5 GiB",
    ]
