"""The section `stacks`: layers that fit together become one stack, anything else is an error with its line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.stack import Checkout, Stack
from harness.matrix.stacks.recipes import UNDECLARED
from harness.matrix.stacks.section import EnvironmentRequest, distribution, environment_request, is_url, layers_of
from harness.upstreams.table import PROJECTS
from tests.matrix.helpers import expand_axes, matrix_of, names, problems_of

CORE = "megatron-core==0.17.1"
LM = {"checkout": "/src/lm", "ref": "main", "package": "megatron-lm"}


def needs(*packages: str) -> tuple[str, ...]:
    """The packages, with the undeclared requirements of megatron-core."""
    return tuple(sorted((*packages, *UNDECLARED["megatron-core"])))


def stack_of(definition: Any) -> Stack:
    return matrix_of(matrix={"packing": "sft", "stack": "s"}, stacks={"s": definition}).stacks["s"]


def problem(definition: Any) -> str:
    found = problems_of(matrix={"packing": "sft", "stack": "s"}, stacks={"s": definition})
    return "\n".join(str(item) for item in found)


@pytest.mark.parametrize(
    ("definition", "stack"),
    [
        ({"packages": [CORE]}, Stack(name="s", packages=(CORE,))),
        ({"packages": [CORE], "python": "3.12"}, Stack(name="s", packages=(CORE,), python="3.12")),
        ({"packages": [CORE], "no_deps": True}, Stack(name="s", no_deps=(CORE,))),
        ({"python": "/opt/env/bin/python"}, Stack(name="s", interpreter="/opt/env/bin/python")),
        ({"container": "nvcr:25.10", "env": {"A": "1"}}, Stack(name="s", container="nvcr:25.10", env={"A": "1"})),
        (
            [{**LM, "revert": ["4bce841d24", "tag"]}, {"python": "/p"}],
            Stack(
                name="s",
                interpreter="/p",
                checkouts=(
                    Checkout(package="megatron-lm", repository="/src/lm", ref="main", revert=("4bce841d24", "tag")),
                ),
            ),
        ),
        (
            [LM, {"packages": ["megatron-bridge==0.6.2"]}],
            Stack(
                name="s",
                packages=("megatron-bridge==0.6.2",),
                checkouts=(Checkout(package="megatron-lm", repository="/src/lm", ref="main"),),
            ),
        ),
    ],
)
def test_a_definition_becomes_a_stack_and_is_written_back_as_the_same(definition: Any, stack: Stack) -> None:
    assert stack_of(definition) == stack
    assert stack_of(layers_of(stack)) == stack


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"packges": [CORE]}, "stacks.s.packges: unknown key"),
        ({"packges": [CORE]}, "did you mean 'packages'?"),
        ({}, "stacks.s: names no software"),
        ([], "stacks.s: an empty list is not a stack"),
        (7, "stacks.s: must be a mapping"),
        ("default", "stacks.s: no such recipe (found 'default'; allowed: core-0.14.0, "),
        ("core-0.19", "did you mean 'core-0.19.2'?"),
        ([LM, "megatron-core==0.19.3"], "stacks.s[1]: no such recipe (found 'megatron-core==0.19.3'; allowed: core-"),
        ([{"packages": ["torch==2.14.0"]}, "core-0.19.2"], "'torch==2.15.0' contradicts 'torch==2.14.0'"),
        ({"packages": []}, "stacks.s.packages: must not be empty"),
        ({"packages": ["--index-url=x"]}, "stacks.s.packages[0]: must be a requirement"),
        ({"packages": [CORE], "python": 3.12}, "stacks.s.python: must be text (found 3.12)"),
        (
            {"packages": [CORE], "python": "3.9"},
            "must be a version of Python when packages are given (found '3.9'; allowed: 3.10",
        ),
        ({"python": "3.12"}, "a version needs packages"),
        ({"packages": [CORE], "container": "x"}, "packages and container cannot be in one layer"),
        ({"checkout": "https://example.org/lm", "package": "megatron-lm"}, "stacks.s.ref: is required with a URL"),
        (
            {"checkout": "/lm", "package": "megatron-lm", "revert": ["a"]},
            "stacks.s.revert: is allowed only with ref",
        ),
        ({"checkout": "/lm", "ref": "main"}, "stacks.s.package: is required with checkout"),
        ({**LM, "package": "megatron"}, "stacks.s.package: must be one of megatron-lm"),
        ({**LM, "ref": "--help"}, "stacks.s.ref: must not begin with '-'"),
        ({**LM, "revert": ["a", "--help"]}, "stacks.s.revert[1]: must not begin with '-'"),
        ({**LM, "revert": []}, "stacks.s.revert: must not be empty"),
        ({**LM, "revert": [1234567]}, "stacks.s.revert[0]: must be text (found 1234567)"),
        ({"packages": [CORE], "revert": ["a"]}, "stacks.s.revert: is allowed only with checkout"),
        ({"packages": [CORE], "ref": "main"}, "stacks.s.ref: is allowed only with checkout"),
        ({"python": "/p", "no_deps": True}, "stacks.s.no_deps: is allowed only with packages"),
        ({"python": "/p", "env": {"A B": "1"}}, "must be the name of an environment variable"),
        ({"python": "/p", "env": {"HF_TOKEN": "1"}}, "stacks.s.env.HF_TOKEN: names a secret"),
        ({"python": "/p", "env": {"DB": "https://u:hunter2@h"}}, "stacks.s.env.DB: holds a secret"),
        ({"packages": ["x @ git+https://u:hunter2@h/x"]}, "stacks.s.packages: holds credentials"),
        ({**LM, "ref": "main", "setup": "curl -u me:hunter2 h"}, "stacks.s.setup: holds credentials"),
        ({"python": "/p", "env": {"A": "1\n2"}}, "stacks.s.env.A: must be one line of text"),
        ({**LM, "checkout": "https://me:pass@host/x.git"}, "stacks.s.checkout: holds credentials"),
        ([{"python": "/p"}, {"container": "x"}], "python and container cannot be in one stack"),
        ([{"packages": [CORE]}, {"python": "/p"}], "packages and python cannot be in one stack"),
        ([{"container": "a"}, {"container": "b"}], "stacks.s[1].container: contradicts another layer"),
        ([LM, LM], "stacks.s[1].package: another layer is also a checkout of megatron-lm"),
        ([{"packages": [CORE]}, {"packages": ["Megatron_Core==0.18.2"]}], "contradicts 'megatron-core==0.17.1'"),
        (
            [{"packages": [CORE], "python": "3.12"}, {"packages": ["six"], "python": "3.13"}],
            "stacks.s[1].python: contradicts another layer (found '3.13'; allowed: '3.12')",
        ),
    ],
)
def test_layers_that_do_not_fit_together_are_errors(definition: Any, expected: str) -> None:
    assert expected in problem(definition)


def test_a_commit_of_a_project_is_set_up_as_the_project_says_unless_a_layer_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PROJECTS, "megatron-lm", replace(PROJECTS["megatron-lm"], setup="make"))
    tree = {"checkout": "/src/lm", "package": "megatron-lm"}
    layers = (LM, {**LM, "setup": "true"}, tree)
    assert [stack_of(layer).checkouts[0].setup for layer in layers] == ["make", "true", ""]


def test_the_variables_of_the_top_layer_win() -> None:
    upper, lower = {**LM, "env": {"A": "upper"}}, {"packages": [CORE], "env": {"A": "lower", "B": "lower"}}
    assert stack_of([upper, lower]).env == {"A": "upper", "B": "lower"}


def test_an_undefined_stack_is_reported_with_the_nearest_name() -> None:
    axes = {"packing": "sft", "stack": ["default", "core171"]}
    (found,) = problems_of(matrix=axes, stacks={"core17": {"packages": [CORE]}})[:1]
    assert (found.key, found.found, found.hint) == ("matrix.stack", "'core171'", "did you mean 'core17'?")


@pytest.mark.parametrize("name", [True, 3, 2.5, None])
def test_a_name_that_is_not_text_is_refused(name: Any) -> None:
    found = problems_of(matrix={"stack": "a", "packing": "sft"}, stacks={name: {"packages": ["megatron-core==0.19.2"]}})
    assert any("a name has at most 64 letters" in item.message for item in found)
    assert any(item.message == "no such stack" for item in found)


def test_a_stack_that_no_row_uses_is_an_error() -> None:
    (found,) = problems_of(matrix={"packing": "sft"}, stacks={"s": {"packages": [CORE]}})
    assert str(found) == ("t.yaml: stacks.s: no row of the matrix uses this stack (add it to the axis 'stack')")


def test_the_default_stack_cannot_be_defined() -> None:
    found = problems_of(matrix={"packing": "sft"}, stacks={"default": {"packages": [CORE]}})
    assert "stacks.default: is reserved for the environment of the harness itself" in str(found[0])


def test_every_stack_on_the_axis_has_its_own_control() -> None:
    stacks = {name: {"packages": [CORE]} for name in ("a", "b")}
    axes = {"tp": [1, 2], "packing": "reference", "stack": ["default", "a", "b"]}
    expansion = expand_axes(axes, stacks=stacks, constraints=["stack != 'b' or tp == 2"])
    assert names(expansion) == [
        "tp1-pp1-cp1-reference",
        "tp2-pp1-cp1-reference",
        "tp1-pp1-cp1-reference-a",
        "tp2-pp1-cp1-reference-a",
        "tp2-pp1-cp1-reference-b",
    ]
    stack_of_id = {cell.id: cell.config.stack for cell in expansion.cells}
    assert all(stack_of_id[cell.control] == cell.config.stack for cell in expansion.cells if cell.control)
    assert {cell.group for cell in expansion.cells} == {"fp32", "fp32-a", "fp32-b"}
    assert all(cell.axes["stack"] == cell.config.stack for cell in expansion.cells)


def test_known_failures_and_exclusions_may_name_a_stack() -> None:
    stacks = {name: {"packages": [CORE]} for name in ("a", "b")}
    axes = {"packing": "sft", "stack": ["a", "b"], "tp": [1, 2], "exclude": [{"stack": "b", "tp": 2}]}
    expansion = expand_axes(axes, stacks=stacks, xfail=[{"pattern": "*-sft-a", "reason": "r"}])
    known = {name: cell.xfail for cell in expansion.cells for name in [cell.id.rpartition("-")[0]] if cell.xfail}
    assert list(known) == ["tp1-pp1-cp1-sft-a", "tp2-pp1-cp1-sft-a"]
    assert "tp2-pp1-cp1-sft-b" not in names(expansion)


@pytest.mark.parametrize(
    ("stack", "torch", "request_"),
    [
        (
            Stack(name="s", packages=(CORE,)),
            "2.15.0",
            EnvironmentRequest(pythons=("3.12", "3.13"), packages=needs(CORE, "torch==2.15.0")),
        ),
        (
            Stack(name="s", packages=("megatron-core==0.16.1", "torch==2.9.0"), python="3.11"),
            "2.15.0",
            EnvironmentRequest(pythons=("3.11",), packages=needs("megatron-core==0.16.1", "torch==2.9.0")),
        ),
        (
            Stack(name="s", packages=("six",), no_deps=("megatron-bridge==0.6.2",)),
            "",
            EnvironmentRequest(
                pythons=("3.12", "3.13"), packages=("six", "torch"), no_deps=("megatron-bridge==0.6.2",)
            ),
        ),
        (Stack(name="s", interpreter="/p"), "2.15.0", None),
        (Stack(name="s", container="x"), "2.15.0", None),
    ],
)
def test_an_environment_gets_torch_the_packages_and_what_they_import(
    stack: Stack, torch: str, request_: EnvironmentRequest | None
) -> None:
    assert environment_request(stack, torch) == request_


@pytest.mark.parametrize(("pin", "first", "oldest"), [("0.16.1", "3.12", "3.10"), ("0.17.0", "3.12", "3.13")])
def test_newer_releases_need_python_3_12(pin: str, first: str, oldest: str) -> None:
    request = environment_request(Stack(name="s", packages=(f"megatron-core == {pin}",)))
    assert request is not None
    assert (request.pythons[0], request.pythons[-1]) == (first, oldest)


def test_names_of_distributions_are_normalised() -> None:
    assert [distribution(text) for text in ("Megatron_Core==0.17.1", "a.b[x]>=2", "c @ file:///c.whl")] == [
        "megatron-core",
        "a-b",
        "c",
    ]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://host/x.git", True),
        ("file:///x", True),
        ("git@host:x/y.git", True),
        ("../lm", False),
        ("/src/lm", False),
    ],
)
def test_urls_are_distinguished_from_paths(text: str, url: bool) -> None:
    assert is_url(text) is url
