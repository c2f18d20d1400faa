"""The file of a rank's record: JSON with a line for each field.

Ranks of a cell record much that is the same: imports, layers, copies of parameters. Their reader parses such a line
once, so that runs with many ranks are judged in less time (benchmarks/bench_judge.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from json import JSONEncoder
from pathlib import Path
from typing import Any

from harness.core.run.records import RankRecord
from harness.core.run.run_dir import write_atomic
from harness.core.serialization import field_readers, from_jsonable, loads, to_jsonable

_ENCODER = JSONEncoder(allow_nan=False, ensure_ascii=False)
_BEGIN, _NEXT, _END = "{\n", ",\n", "\n}\n"  # a JSON string holds no newline, so these are always between values


def write_record(path: Path, record: RankRecord) -> None:
    """Write a record as `write_atomic` does."""
    write_atomic(path, record_text(record))


def record_text(record: RankRecord) -> str:
    fields = to_jsonable(record).items()
    return _BEGIN + _NEXT.join(f'"{name}": {_ENCODER.encode(value)}' for name, value in fields) + _END


def digest_of_choices(records: Sequence[RankRecord]) -> str:
    """Return the SHA-256 of what routers chose on each rank, in the order of the ranks; empty if no rank recorded a
    choice.
    """
    if not any(record.choices for record in records):
        return ""
    choices = [to_jsonable(record.choices) for record in records]
    return hashlib.sha256(_ENCODER.encode(choices).encode()).hexdigest()


class RecordReader:
    """Reads the records of one cell. They share the values of equal lines, so they must not be changed."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, Any]] = {}  # line -> name and value of the field

    def read(self, text: str) -> RankRecord:
        """Return the record with this text. ValueError if it is not JSON, TypeError if it is not a record."""
        try:
            return self._from_lines(text)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            return from_jsonable(RankRecord, loads(text), whole=True)  # slower; names the field, reads any layout

    def _from_lines(self, text: str) -> RankRecord:
        if not (text.startswith(_BEGIN) and text.endswith(_END)):
            raise ValueError
        values = dict(self._field(line) for line in text[len(_BEGIN) : -len(_END)].split(_NEXT))
        if len(values) != len(field_readers(RankRecord, True)):
            raise TypeError
        return RankRecord(**values)

    def _field(self, line: str) -> tuple[str, Any]:
        if line not in self._read:
            [(name, value)] = loads("{" + line + "}").items()
            self._read[line] = name, field_readers(RankRecord, True)[name](value)
        return self._read[line]
