"""Laws of the matrix section, for any axes: what is multiplied, excluded, included and merged, in whatever order."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.cell.axes import axes
from harness.matrix.axes import Axes, Row
from harness.matrix.expansion.resolve import combinations_of
from harness.matrix.problems import Problems
from tests.matrix.helpers import expand_axes, matrix_of

VALUES: dict[str, list[Any]] = {
    "tp": [1, 2, 4],
    "cp": [1, 2],
    "packing": ["unpacked", "reference", "sft"],
    "dtype": ["fp32", "bf16"],
    "sp": ["auto", False],
}
DIMENSIONS = st.fixed_dictionaries(
    {name: st.lists(st.sampled_from(values), min_size=1, unique=True) for name, values in VALUES.items()}
)
PARTS = st.lists(
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}).filter(bool),
    max_size=3,
)
Values = tuple[tuple[str, Any], ...]


def combined(dimensions: dict[str, list[Any]], **rows: list[dict[str, Any]]) -> list[Values]:
    """The combinations, each as its values sorted by axis."""
    made = Axes(
        tuple(tuple(Row({name: value}, None) for value in values) for name, values in dimensions.items()),
        **{name: tuple(Row(values, None) for values in found) for name, found in rows.items()},
    )
    return [tuple(sorted(row.values.items())) for row in made.combinations()]


def holds(values: Values, part: dict[str, Any]) -> bool:
    return part.items() <= dict(values).items()


@given(dimensions=DIMENSIONS)
def test_axes_multiply_and_every_combination_is_there_once(dimensions: dict[str, list[Any]]) -> None:
    found = combined(dimensions)
    assert len(found) == len(set(found)) == math.prod(map(len, dimensions.values()))


@given(dimensions=DIMENSIONS, exclude=PARTS)
def test_exclude_drops_what_a_row_matches_and_nothing_else(
    dimensions: dict[str, list[Any]], exclude: list[dict[str, Any]]
) -> None:
    left = [values for values in combined(dimensions) if not any(holds(values, part) for part in exclude)]
    assert combined(dimensions, exclude=exclude) == left
    assert combined(dimensions, exclude=exclude[::-1]) == left


@given(dimensions=DIMENSIONS, include=PARTS, exclude=PARTS, data=st.data())
def test_include_keeps_every_combination_overwrites_nothing_and_is_never_lost(
    dimensions: dict[str, list[Any]], include: list[dict[str, Any]], exclude: list[dict[str, Any]], data: st.DataObject
) -> None:
    named = data.draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=3))
    few = {name: values for name, values in dimensions.items() if name in named}
    plain, found = combined(few, exclude=exclude), combined(few, include=include, exclude=exclude)
    assert all(holds(values, dict(first)) for first, values in zip(plain, found))
    added = found[len(plain) :]
    fits = [
        any(all(dict(one).get(name, value) == value for name, value in row.items()) for one in plain) for row in include
    ]
    assert added == [tuple(sorted(row.items())) for row, used in zip(include, fits) if not used]


@given(dimensions=DIMENSIONS, exclude=PARTS, data=st.data())
def test_the_order_of_axes_and_values_changes_only_the_order(
    dimensions: dict[str, list[Any]], exclude: list[dict[str, Any]], data: st.DataObject
) -> None:
    names = data.draw(st.permutations(list(dimensions)))
    other = {name: data.draw(st.permutations(dimensions[name])) for name in names}
    assert sorted(map(repr, combined(other, exclude=exclude))) == sorted(
        map(repr, combined(dimensions, exclude=exclude))
    )


@settings(max_examples=20, deadline=None)
@given(dimensions=DIMENSIONS, data=st.data())
def test_ids_are_unique_and_do_not_depend_on_the_order(dimensions: dict[str, list[Any]], data: st.DataObject) -> None:
    other = {
        name: data.draw(st.permutations(dimensions[name])) for name in data.draw(st.permutations(list(dimensions)))
    }
    one = {"tp": 1, "dtype": "fp32", "packing": "unpacked"}  # so that something is left to run
    made, again = (expand_axes({**axes, "include": [one]}) for axes in (dimensions, other))
    ids = [cell.id for cell in (*made.cells, *made.rejected)]
    assert len(ids) == len(set(ids))
    assert {cell.id: cell.config for cell in made.cells} == {cell.id: cell.config for cell in again.cells}
    assert {cell.id: cell.rejections for cell in made.rejected} == {cell.id: cell.rejections for cell in again.rejected}


@given(dimensions=DIMENSIONS)
def test_a_combination_has_a_value_for_every_axis(dimensions: dict[str, list[Any]]) -> None:
    matrix = matrix_of(matrix=dimensions)
    made, excluded = combinations_of(matrix, Problems(matrix.file, matrix.lines))
    resolved = [
        (tp, cp, packing, dtype, tp > 1 if sp == "auto" else sp)
        for tp, cp, packing, dtype, sp in itertools.product(*(dimensions[name] for name in VALUES))
    ]
    assert sorted(tuple(row.values[name] for name in VALUES) for row in made) == sorted(resolved)
    assert all(row.values.keys() >= axes().keys() for row in made)
    assert not excluded
