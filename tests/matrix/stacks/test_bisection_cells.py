"""The cells of a bisection: those of the matrix, at another point of the subject's history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.identity import cell_id
from harness.core.stack import Checkout, Stack, digest
from harness.matrix.expansion.expand import expand
from harness.matrix.load import Matrix
from harness.matrix.stacks.bisection_cells import (
    Subject,
    for_bisection,
    moved,
    named_at,
    pinned_release,
    plain_name,
    without_twins,
)
from harness.upstreams.table import project_of
from tests.matrix.helpers import matrix_of

LM = Subject(name="megatron-lm", repository="/clone")
CORE = Subject(name="megatron-core")
CHECKOUT = {"checkout": "/elsewhere", "ref": "old", "package": "megatron-lm"}


def at(stacks: Mapping[str, Stack], point: str, label: str) -> dict[str, Stack]:
    return named_at({name: LM.at(stack, point) for name, stack in stacks.items()}, LM, label)


def bisected(subject: Subject, **sections: Any) -> Matrix:
    return matrix_of(for_bisection({"name": "t", **sections}, subject))


def test_only_the_bisected_checkout_moves_to_the_clone_and_commit() -> None:
    other = Checkout(package="skyrl", repository="/s", ref="x")
    mine = Checkout(package="megatron-lm", repository="/elsewhere", ref="old")
    stack = Stack(name="s", packages=("six",), checkouts=(other, mine), env={"A": "1"})
    assert LM.is_in(stack)
    assert LM.at(stack, "abc") == replace(stack, checkouts=(other, replace(mine, repository="/clone", ref="abc")))


@pytest.mark.parametrize("requirement", ["megatron-core", "megatron_core[mlm]>=0.16,<1", "Megatron-Core==0.17.1"])
def test_a_requirement_is_pinned_to_the_release_in_packages_and_no_deps(requirement: str) -> None:
    for field in ("packages", "no_deps"):
        stack = Stack(name="s", **{field: (requirement, "six")})
        assert CORE.is_in(stack)
        (pinned, six) = getattr(CORE.at(stack, "0.18.0"), field)
        assert (pinned.lower().replace("_", "-"), six) == ("megatron-core==0.18.0", "six")


def test_a_stack_without_the_subject_is_not_bisected() -> None:
    assert not CORE.is_in(Stack(name="s", packages=("megatron-bridge==0.4.2",)))
    assert not LM.is_in(Stack(name="s", packages=("megatron-core",)))
    changed = Checkout(package="megatron-lm", repository="/elsewhere", ref="old", revert=("abc",))
    assert not LM.is_in(Stack(name="s", checkouts=(changed,)))  # no commit of the history equals it


@pytest.mark.parametrize(
    ("paths", "project"),
    [
        ({"megatron/core"}, "megatron-lm"),
        ({"src/megatron/bridge"}, "megatron-bridge"),
        ({"skyrl", "skyrl-train/skyrl_train"}, "skyrl"),
        ({"skyrl-train/skyrl_train"}, "skyrl-train"),
        ({"README.md"}, None),
    ],
)
def test_a_project_is_identified_by_its_modules(paths: set[str], project: str | None) -> None:
    found = project_of(lambda path: path in paths)
    assert (found.name if found else None) == project


def test_a_matrix_without_stacks_gets_one_for_all_its_cells() -> None:
    section = {"tp": [1, 2], "packing": "reference", "include": [{"tp": 2, "pp": 2, "packing": "sft"}]}
    matrix = bisected(LM, matrix=section)
    cells = expand(matrix).cells
    assert {cell.config.stack for cell in cells} == {"megatron-lm"}
    assert {plain_name(cell) for cell in cells if cell.role == "cell"} == {
        plain_name(cell) for cell in expand(matrix_of(matrix=section)).cells if cell.role == "cell"
    }


def test_a_matrix_of_include_rows_alone_gets_no_further_combination() -> None:
    matrix = bisected(LM, matrix={"include": [{"packing": "sft"}, {"packing": "sft", "pp": 2}]})
    assert [plain_name(cell) for cell in expand(matrix).cells if cell.role == "cell"] == [
        "tp1-pp1-cp1-sft",
        "tp1-pp2-cp1-sft",
    ]


def test_stacks_of_the_matrix_stay_but_what_describes_them_is_dropped() -> None:
    sections: dict[str, Any] = {
        "matrix": {"packing": "sft", "stack": ["a", "default"]},
        "stacks": {"a": CHECKOUT},
        "xfail": [{"pattern": "*-a", "reason": "known"}],
        "may_reject": [{"pattern": "*-a", "reason": "old"}],
        "checks": {"throughput": {"slower_than": {"stack": "default"}, "rounds": 7}},
    }
    matrix = bisected(LM, **sections)
    assert (list(matrix.stacks), matrix.xfail, matrix.base, matrix.timing.rounds) == (["a"], (), "", 7)
    assert matrix.may_reject == ()


def test_cells_change_only_their_stack_and_move_with_their_controls() -> None:
    matrix = bisected(LM, matrix={"tp": [1, 2], "packing": "reference", "stack": "a"}, stacks={"a": CHECKOUT})
    cells = expand(matrix).cells
    stacks = at(matrix.stacks, "f" * 40, "f" * 12)
    new = moved(cells, stacks)
    assert stacks["a"].name == "megatron-lm-ffffffffffff"
    assert stacks["a"].checkouts[0].ref == "f" * 40
    for cell in cells:
        other = new[cell.id]
        made_of = digest(stacks["a"])
        assert other.config == replace(cell.config, stack="megatron-lm-ffffffffffff", made_of=made_of)
        assert other.id == cell_id(other.config)
        assert plain_name(other) == plain_name(cell)
        assert other.control == (new[cell.control].id if cell.control else None)
        assert other.group == "fp32-megatron-lm-ffffffffffff"


def test_cells_that_differ_only_in_the_bisected_point_are_merged() -> None:
    stacks = {"a": CHECKOUT, "b": {**CHECKOUT, "ref": "new"}, "c": {**CHECKOUT, "env": {"X": "1"}}}
    matrix = bisected(LM, matrix={"packing": "reference", "stack": ["a", "b", "c"]}, stacks=stacks)
    cells = [cell for cell in expand(matrix).cells if cell.role == "cell"]
    kept = without_twins(cells, matrix.stacks, LM)
    assert [cell.config.stack for cell in kept] == ["a", "c"]
    left = {name: matrix.stacks[name] for name in ("a", "c")}
    assert [stack.name for stack in at(left, "f" * 40, "fff").values()] == ["a-fff", "c-fff"]


def test_the_plain_name_does_not_depend_on_the_stack() -> None:
    matrix = bisected(LM, matrix={"packing": "sft", "stack": "sft"}, stacks={"sft": CHECKOUT})
    assert {plain_name(cell) for cell in expand(matrix).cells if cell.role == "cell"} == {"tp1-pp1-cp1-sft"}


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('dependencies = ["six", "megatron-core[dev,mlm] == 0.18.0; python_version > \\"3.10\\""]', "0.18.0"),
        ("Megatron_Core==0.17.0rc1\n", "0.17.0rc1"),
        ("megatron-core>=0.17\n", ""),
        ("my-megatron-core==1.0\nmegatron-core-extra==2.0\n", ""),
    ],
)
def test_a_pinned_release_is_read_from_a_requirement(text: str, release: str) -> None:
    assert pinned_release(text, "megatron-core") == release
