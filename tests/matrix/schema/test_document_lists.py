"""Lists of document lengths by name, as values of the axis `documents`."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.errors import InputError, Problem
from harness.core.packing.documents import DocumentsConfig
from harness.matrix.expansion.expand import expand
from harness.matrix.load import load, resolved
from tests.matrix.helpers import expand_axes, matrix_of, names, problems_of

LISTS = {"short": [5, 9], "ragged": [1, 40]}
AXES = {"packing": "reference", "documents": ["short", "ragged", "plain"]}


def test_each_list_is_a_value_of_the_axis_with_its_own_control() -> None:
    made = expand_axes(AXES, documents={"lists": LISTS})
    assert names(made) == [f"tp1-pp1-cp1-reference-{name}" for name in AXES["documents"]]
    lengths = {cell.config.documents.label: cell.config.documents.lengths for cell in made.cells}
    assert lengths["short"] == (5, 9) and lengths["ragged"] == (1, 40)
    controls = {cell.config.documents.label: cell.id for cell in made.cells if cell.role == "control"}
    assert {cell.config.documents.label: cell.control for cell in made.cells if cell.role == "cell"} == controls
    assert len(set(controls.values())) == 3
    assert [cell.axes["documents"] for cell in made.cells if cell.role == "cell"] == AXES["documents"]


def test_a_list_may_be_a_file() -> None:
    values = {"name": "t", "matrix": AXES, "documents": {"lists": LISTS | {"short": "a.csv"}}}
    matrix = load(values, file="t.yaml", lines={}, read_lengths=lambda name: (3, len(name)))
    assert matrix.lists["short"] == DocumentsConfig(mode="file", lengths=(3, 5), name="short")


def test_the_name_and_the_lengths_are_part_of_the_id() -> None:
    def only(lists: dict[str, Any]) -> str:
        axes = {"packing": "reference", "documents": next(iter(lists))}
        return next(cell.id for cell in expand_axes(axes, documents={"lists": lists}).cells if cell.role == "cell")

    assert len({only({"a": [5]}), only({"a": [6]}), only({"b": [5]})}) == 3


def test_the_resolved_file_makes_the_same_cells() -> None:
    matrix = matrix_of(matrix=AXES, documents={"mode": "uncut", "lists": LISTS})
    assert resolved(matrix)["documents"] == {"mode": "uncut", "lists": LISTS}
    assert expand(matrix_of(resolved(matrix))).cells == expand(matrix).cells


def test_constraints_and_rows_name_lists() -> None:
    rows = {
        "packing": "reference",
        "documents": "short",
        "include": [{"cp": 2, "documents": "ragged", "packing": "reference"}],
    }
    made = expand_axes({**rows, "cp": 1}, documents={"lists": LISTS})
    assert names(made) == ["tp1-pp1-cp1-reference-short", "tp1-pp1-cp2-reference-ragged"]
    made = expand_axes(AXES, documents={"lists": LISTS}, constraints=["documents != 'ragged'"])
    assert names(made) == ["tp1-pp1-cp1-reference-short", "tp1-pp1-cp1-reference-plain"]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([5], "documents.lists: must be a mapping of names to lists of lengths"),
        ({"short": [5], "ragged": [0]}, "documents.lists.ragged.lengths[0]: must be at least 1 (found 0)"),
        ({"short": [5], "ragged": []}, "documents.lists.ragged.lengths: must not be empty"),
        ({"short": [5], "ragged": 7}, "documents.lists.ragged.lengths: must be a list (found 7)"),
        ({"short": [5], "ragged": [6], "plain": [7]}, "documents.lists.plain: cannot be a name"),
        ({"short": [5], "ragged": [6], "a/b": [7]}, "documents.lists.a/b: cannot be a name"),
        ({"short": [5], "ragged": [6], "other": [7]}, "documents.lists.other: no row of the matrix uses this list"),
        (
            {"short": [5], "raged": [6]},
            "matrix.documents: no such mix, or list of lengths (found 'ragged'; allowed: adversarial, uncut, plain, "
            "multi_turn, delimited, images, short, raged; did you mean 'raged'?)",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(lists: Any, expected: str) -> None:
    found = problems_of(matrix=AXES, documents={"lists": lists})
    assert expected in "\n".join(map(str, found))


def test_the_problems_of_a_file_are_at_its_list() -> None:
    def broken(name: str) -> tuple[int, ...]:
        raise InputError(Problem(message="not a document length", file=name, line=3))

    with pytest.raises(InputError, match=r"documents\.lists\.short: a\.csv line 3: not a document length"):
        values = {"name": "t", "matrix": AXES, "documents": {"lists": LISTS | {"short": "a.csv"}}}
        load(values, file="t.yaml", lines={}, read_lengths=broken)
