"""The edit of a function's code, on functions of the standard library and of this file."""

from __future__ import annotations

import textwrap

import pytest

from harness.faults.node_edits import Edit, TrainerEdited


class Scaled:
    def value(self) -> int:
        return len("ab")


def test_all_references_to_a_function_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = textwrap.shorten
    monkeypatch.setattr(kept, "__code__", kept.__code__)  # restored afterwards
    TrainerEdited(Edit("textwrap:shorten", "w.fill(", "w.fill('x ' + ")).on_trainer()
    assert kept("a  b", width=9) == "x a b"


def test_a_method_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaled.value, "__code__", Scaled.value.__code__)
    made = Scaled()
    TrainerEdited(Edit(f"{__name__}:Scaled.value", 'len("ab")', '2 * len("ab")')).on_trainer()
    assert made.value() == 4


@pytest.mark.parametrize("right", ["no such line", "w"])
def test_a_line_that_is_not_there_once_is_an_error(right: str) -> None:
    with pytest.raises(ValueError, match="textwrap:shorten of this release has no single"):
        TrainerEdited(Edit("textwrap:shorten", right, "")).on_trainer()
