"""A record survives its file, whatever its layout, and equal lines of several records are read once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.layout import Layout
from harness.core.run.record_file import RecordReader, record_text, write_record
from harness.core.run.records import DocumentLoss, RankRecord, StepSeen
from harness.core.serialization import to_jsonable
from harness.judge.import_check import ImportProof

PLACE = Layout(tp=2).coordinates
STEP = StepSeen(step=0, micro_batches=1, grad_norm=math.nan)
RECORD = RankRecord(
    cell="c",
    rank=0,
    place=PLACE(0),
    environment={"text": 'a line,\n"rank": 7'},
    imports=[ImportProof(module="megatron.core", version="0.18.2", path="/a")],
    steps=[STEP],
)


def test_a_record_is_json_with_a_line_for_each_field(tmp_path: Path) -> None:
    write_record(tmp_path / "r.json", RECORD)
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text) == to_jsonable(RECORD)
    assert len(text.splitlines()) == len(to_jsonable(RECORD)) + 2


@pytest.mark.parametrize("indent", [None, 1, 2])
def test_a_record_is_read_in_any_layout(indent: int | None) -> None:
    read = RecordReader().read(json.dumps(to_jsonable(RECORD), indent=indent))
    assert repr(read) == repr(RecordReader().read(record_text(RECORD))) == repr(RECORD)


def test_records_share_the_values_of_equal_lines_and_no_others() -> None:
    reader = RecordReader()
    other = replace(RECORD, rank=1, place=PLACE(1), steps=[replace(STEP, grad_norm=1.0)])
    one, two = reader.read(record_text(RECORD)), reader.read(record_text(other))
    assert one.imports is two.imports
    assert (two.rank, two.place, two.steps[0].grad_norm) == (1, PLACE(1), 1.0)
    assert math.isnan(one.steps[0].grad_norm or 0.0)


def lines() -> list[str]:
    return record_text(RECORD).splitlines()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\n".join(line for line in lines() if '"rank"' not in line), "rank"),
        ("\n".join(line.replace('"rank": 0', '"rank": "0"') for line in lines()), "rank"),
        ("\n".join(line.replace('"rank": 0', '"rank": 0, "strange": 1') for line in lines()), "strange"),
        ("\n".join(line.replace('"rank": 0,', '"rank": 0') for line in lines()), "delimiter"),
        ("\n".join(line.replace('"rank": 0,', '"rank": 0},{') for line in lines()), "Extra data"),
        ("\n".join(lines()[:-1]), "delimiter"),
        (record_text(RECORD) + "}", "Extra data"),
        ("{\n\n}\n", "is missing"),
    ],
)
def test_a_damaged_record_is_an_error_that_names_the_place(text: str, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        RecordReader().read(text)


def test_a_repeated_field_has_its_last_value_as_in_any_json() -> None:
    text = record_text(RECORD).replace('"rank": 0,', '"rank": 0,\n"rank": 5,')
    assert RecordReader().read(text).rank == json.loads(text)["rank"] == 5


NUMBERS = st.floats() | st.none()
STEPS = st.builds(
    StepSeen,
    step=st.integers(0, 9),
    micro_batches=st.integers(1, 4),
    grad_norm=NUMBERS,
    loss_sum=NUMBERS,
    documents=st.dictionaries(
        st.integers(0, 99), st.builds(DocumentLoss, loss_sum=st.floats(), tokens=st.integers(0, 9)), max_size=3
    ),
)


@given(steps=st.lists(STEPS, max_size=3), text=st.text(max_size=20))
def test_a_record_comes_back_exactly_with_nan_infinity_and_any_text(steps: list[StepSeen], text: str) -> None:
    """repr differs for every two floats, also 0.0 and -0.0, and is nan for nan."""
    record = replace(RECORD, steps=steps, environment={text: text})
    assert repr(RecordReader().read(record_text(record))) == repr(record)
