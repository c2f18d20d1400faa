from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.run.records import CellResult
from harness.core.serialization import MAX_INT, dumps, from_jsonable, loads, to_jsonable


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: float = 0.0
    colour: Colour = Colour.RED


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    losses: list[float] = field(default_factory=list)
    pair: tuple[int, float] = (0, 0.0)
    many: tuple[str, ...] = ()
    by_rank: dict[int, list[float]] = field(default_factory=dict)
    anything: Any = None
    flag: bool = False


FLOATS = st.floats(allow_nan=True, allow_infinity=True)
INNER = st.builds(Inner, number=FLOATS, colour=st.sampled_from(Colour))
OUTER = st.builds(
    Outer,
    name=st.text(),
    inner=INNER,
    maybe=st.none() | INNER,
    losses=st.lists(FLOATS, max_size=4),
    pair=st.tuples(st.integers(-MAX_INT, MAX_INT), FLOATS),
    many=st.lists(st.text(), max_size=3).map(tuple),
    by_rank=st.dictionaries(st.integers(0, 9), st.lists(FLOATS, max_size=2), max_size=2),
    anything=st.none() | st.integers() | FLOATS | st.lists(FLOATS, max_size=2),
    flag=st.booleans(),
)


@given(value=OUTER)
def test_a_dataclass_comes_back_as_it_was_with_nan_and_infinity(value: Outer) -> None:
    text = dumps(value)
    again = from_jsonable(Outer, loads(text))
    assert repr(again) == repr(value)  # repr, since nan != nan
    assert dumps(again) == text


@given(value=FLOATS)
def test_every_float_is_strict_json_and_exact(value: float) -> None:
    text = dumps({"x": value})
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = loads(text)["x"]
    assert again == value or (math.isnan(again) and math.isnan(value))
    assert math.copysign(1, again) == math.copysign(1, value) or math.isnan(value)


def test_non_finite_floats_are_tagged() -> None:
    assert to_jsonable([math.inf, -math.inf, math.nan]) == [{"$float": "inf"}, {"$float": "-inf"}, {"$float": "nan"}]


def test_enums_keys_ranges_and_integers_have_their_json_form() -> None:
    assert to_jsonable({3: range(2), "c": Colour.BLUE}) == {"3": [0, 1], "c": "blue"}
    assert from_jsonable(Inner, {"number": 2}) == Inner(number=2.0)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", Outer])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        to_jsonable(value)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"name": 3}, "Outer.name: expected str, found 3"),
        ({}, "Outer: field 'name' is missing"),
        ({"name": "x", "colour": 1}, "Outer: unknown field 'colour'"),
        ({"name": "x", "inner": []}, "Outer.inner: expected a mapping"),
        ({"name": "x", "inner": {"number": "x"}}, "Outer.inner.number: expected float"),
        ({"name": "x", "losses": [0.5, "x"]}, r"Outer.losses\[1\]: expected float"),
        ({"name": "x", "losses": 3}, "Outer.losses: expected a list"),
        ({"name": "x", "pair": [True, 0.5]}, r"Outer.pair\[0\]: expected int, found True"),
        ({"name": "x", "inner": {"number": True}}, "Outer.inner.number: expected float, found True"),
        ({"name": "x", "pair": [1]}, "Outer.pair: expected 2 items, found 1"),
        ({"name": "x", "by_rank": {"1": ["x"]}}, r"Outer.by_rank\[1\]\[0\]: expected float"),
        ({"name": "x", "by_rank": {"a": []}}, r"Outer.by_rank\[a\]: expected int, found 'a'"),
        (
            {"name": "x", "inner": {"colour": "green"}},
            r"Outer.inner.colour: expected one of \('red', 'blue'\), found 'green'",
        ),
        ([], "Outer: expected a mapping"),
    ],
)
def test_a_wrong_shape_is_named_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(TypeError, match=where):
        from_jsonable(Outer, value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, '{"$float": [1]}', '{"$float": "x"}', "9" * 5_000, "\0", ""]
)
def test_what_is_no_json_is_a_value_error_whatever_it_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested|number|float|Expecting|Exceeds"):
        loads(text)


def test_a_word_that_is_none_of_a_literal_type_is_refused_with_its_field() -> None:
    result = CellResult(cell="c", attempt=1, status="completed")
    assert from_jsonable(CellResult, to_jsonable(result)) == result
    for status in ("finished", ["completed"], None):
        with pytest.raises(TypeError, match=r"CellResult\.status"):
            from_jsonable(CellResult, {"cell": "c", "attempt": 1, "status": status})


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**400])
@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"name": "a", "pair": [..., 0.0]}, "Outer.pair[0]"),
        ({"name": "a", "losses": [1.0, ...]}, "Outer.losses[1]"),
        ({"name": "a", "inner": {"number": ...}}, "Outer.inner.number"),
    ],
)
def test_a_whole_number_of_more_than_64_bits_is_refused_with_its_place(
    value: dict[str, Any], where: str, number: int
) -> None:
    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: filled(item) for key, item in part.items()}
        if isinstance(part, list):
            return [filled(item) for item in part]
        return number if part is ... else part

    with pytest.raises(TypeError, match=f"^{re.escape(where)}: a whole number of more than 64 bits$"):
        from_jsonable(Outer, filled(value))


def test_the_largest_whole_numbers_come_back() -> None:
    value = Outer(name="a", pair=(2**63 - 1, 0.0), losses=[float(-(2**63) + 1)])
    assert from_jsonable(Outer, loads(dumps(value))) == value
