"""What a stack's trainer said of arguments is kept, and asked again when anything it depends on changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.stack import ReadyStack, Stack
from harness.launch.stacks import artifact_store, node_code

STACK = ReadyStack(
    requested=Stack(name="main", packages=("torch==2",)), packages={"torch": "2"}, commits={"megatron-lm": "a" * 40}
)
CELLS = {"one": CellConfig(layout=Layout(), data_path="sft")}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The modules asked so far; each says that it refuses the cell."""
    trainers: list[str] = []

    def ask(stack: ReadyStack, module: str, *rest: Any, about: str) -> dict[str, str]:
        trainers.append(module)
        return {"one": "refused"}

    monkeypatch.setenv(artifact_store.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(node_code, "_asked", ask)
    return trainers


def test_the_same_question_is_asked_once(asked: list[str]) -> None:
    answers = [node_code.argument_problems(STACK, "megatron", CELLS) for _ in range(2)]
    assert (answers, asked) == ([{"one": "refused"}] * 2, ["megatron_lm.node_arguments"])


@pytest.mark.parametrize(
    "changed",
    [
        replace(STACK, commits={"megatron-lm": f"{'a' * 40}+changes.1a2b3c4d"}),
        replace(STACK, packages={"torch": "3"}),
        replace(STACK, reverted={"megatron-lm": ("b" * 40,)}),
    ],
)
def test_other_code_is_asked_again(asked: list[str], changed: ReadyStack) -> None:
    for stack in (STACK, changed):
        node_code.argument_problems(stack, "megatron", CELLS)
    assert len(asked) == 2


def test_other_cells_and_trainers_are_asked_again(asked: list[str]) -> None:
    other = {"one": replace(CELLS["one"], dtype="bf16")}
    for trainer, cells in (("megatron", CELLS), ("megatron", other), ("bridge", CELLS)):
        node_code.argument_problems(STACK, trainer, cells)
    assert len(asked) == 3


def test_an_interpreter_of_the_users_may_change_unseen_and_is_asked_each_time(asked: list[str]) -> None:
    stack = replace(STACK, requested=Stack(name="mine", interpreter="/usr/bin/python3"))
    for _ in range(2):
        node_code.argument_problems(stack, "megatron", CELLS)
    assert len(asked) == 2


def test_a_recipe_that_was_built_is_kept_and_a_problem_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = [{"problem": "no file of the model"}, {"yaml": "model: {}", "ranks": 8}]
    monkeypatch.setenv(artifact_store.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(node_code, "_asked", lambda *_, **__: answers.pop(0))
    with pytest.raises(ValueError, match="no file of the model"):
        node_code.built_recipe(STACK, "one_config")
    assert [node_code.built_recipe(STACK, "one_config").ranks for _ in range(2)] == [8, 8]
