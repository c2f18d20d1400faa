"""Stacks as a matrix asks for them, prepared until agents can be started in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError, InputError
from harness.core.stack import CheckedOut, Checkout, ModuleHome, ReadyStack, Stack, StackFacts, Version
from harness.launch.stacks import build
from harness.launch.stacks import build as stack_build
from harness.launch.stacks import prepare as stack_forecast
from harness.launch.stacks import prepare as stacks
from harness.launch.stacks.node_code import agent_environment, copy_node_code
from harness.launch.stacks.prepare import READY, TO_BUILD, UNAVAILABLE, forecasts, moved_since, prepare
from harness.matrix.stacks.section import EnvironmentRequest, environment_request
from tests.launch.stacks.test_checkout import git, repository

pytestmark = pytest.mark.usefixtures("kept")
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def prepared(stack: Stack) -> ReadyStack:
    return prepare([stack], print)[stack.name]


def speaking(path: Path, version: str, *modules: str) -> str:
    """A stub of an interpreter: a script that prints the facts of one on another machine."""
    found = {name: f"/opt/env/{name}/__init__.py" for name in modules}
    says = {"executable": str(path), "version": version, "prefix": "/opt/env", "packages": {}, "modules": found}
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(says)}\nEND\n")
    path.chmod(0o755)
    return str(path)


def test_an_existing_environment_is_used_unchanged(tmp_path: Path) -> None:
    python = speaking(tmp_path / "python", "3.11.2", "torch", "megatron.core")
    ready = prepared(Stack(name="s", interpreter=python))
    assert (ready.usable, ready.python, ready.python_version) == (True, python, "3.11.2")
    assert ready.homes == (
        ModuleHome(prefix="torch", folders=("/opt/env/torch",)),
        ModuleHome(prefix="megatron.core", folders=("/opt/env/megatron.core",)),
        ModuleHome(prefix="", folders=("/opt/env",)),
    )


def test_a_stack_that_cannot_be_compiled_here_is_an_error_leaves_nothing_and_does_not_stop_others(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = EnvironmentRequest(pythons=(HERE,), packages=("six==1.16.0",), no_deps=("transformer-engine-torch==2",))
    monkeypatch.setattr(stacks, "environment_request", lambda stack, torch: request if stack.no_deps else None)
    monkeypatch.setattr(build, "_ask_python", lambda python, code: "2.15.0 3.12")  # six has no torch
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "cat").symlink_to(shutil.which("cat") or "")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))  # no g++
    other = speaking(tmp_path / "python", "3.12.2", "torch", "megatron.core")
    ready = prepare([Stack(name="engine", no_deps=request.no_deps), Stack(name="other", interpreter=other)], print)
    assert not ready["engine"].usable
    assert "there is no g++; install it: apt-get install g++" in ready["engine"].error
    assert ready["other"].usable
    assert not stack_build.is_built(stack_build.place_of(request, HERE))
    assert [path.name for path in (kept / "environments").iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize(
    ("version", "modules", "reason"),
    [
        ("3.9.18", ("torch", "megatron.core"), "is Python 3.9.18, and the probe needs 3.10 or newer"),
        ("3.12.1", ("megatron.core",), "has no torch"),
        ("3.12.1", ("torch",), "has no megatron.core"),
    ],
)
def test_an_environment_that_cannot_run_the_probe_has_the_reason(
    tmp_path: Path, version: str, modules: tuple[str, ...], reason: str
) -> None:
    ready = prepared(Stack(name="s", interpreter=speaking(tmp_path / "python", version, *modules)))
    assert not ready.usable
    assert ready.error.startswith(f"{tmp_path}/python {reason}")


def test_a_checkout_may_provide_a_module_that_the_environment_lacks(tmp_path: Path) -> None:
    source = repository(tmp_path / "lm")
    checkout = Checkout(package="megatron-lm", repository=str(source), ref="old")
    python = speaking(tmp_path / "python", "3.12.1", "torch")
    ready = prepared(Stack(name="s", interpreter=python, checkouts=(checkout,)))
    assert ready.usable
    assert ready.commits == {"megatron-lm": git(source, "rev-parse", "old")}
    (tree,) = ready.paths
    assert (Path(tree) / "code.py").read_text() == "# first\n"
    assert ready.homes[0] == ModuleHome(prefix="megatron.core", folders=(tree,))


@pytest.mark.parametrize("minor", [10, 11])
def test_a_checkout_of_a_release_below_what_is_supported_is_named_with_its_version(minor: int, tmp_path: Path) -> None:
    source = repository(tmp_path / "lm")
    info = source / "megatron" / "core" / "package_info.py"
    info.parent.mkdir(parents=True, exist_ok=True)
    info.write_text(f"MAJOR = 0\nMINOR = {minor}\nPATCH = 0\n")
    python = speaking(tmp_path / "python", "3.12.1", "torch")
    stack = Stack(
        name="s", interpreter=python, checkouts=(Checkout(package="megatron-lm", repository=str(source), ref=""),)
    )
    said: list[str] = []
    ready = prepare([stack], said.append)["s"]
    assert ready.error == f"{info.parent} is megatron-core 0.{minor}.0, and the harness supports 0.13 and later"
    assert said == [f"stack s cannot be used: {ready.error}"]


def test_a_stack_that_cannot_be_built_has_the_reason_and_does_not_stop_others(tmp_path: Path) -> None:
    gone = Stack(name="gone", interpreter="/nowhere/python")
    there = Stack(name="there", interpreter=speaking(tmp_path / "python", "3.12.1", "torch", "megatron.core"))
    said: list[str] = []
    ready = prepare([gone, there], said.append)
    assert "/nowhere/python does not run" in ready["gone"].error
    assert ready["there"].usable
    assert said == [f"stack gone cannot be built: {ready['gone'].error}"]


def test_a_stack_whose_revert_conflicts_is_an_error_and_the_others_are_built(tmp_path: Path) -> None:
    source = repository(tmp_path / "lm")
    python = speaking(tmp_path / "python", "3.12.1", "torch")

    def over(*revert: str) -> tuple[Checkout, ...]:
        return (Checkout(package="megatron-lm", repository=str(source), ref="main", revert=revert),)

    requested = [Stack(name=f"without_{ref}", interpreter=python, checkouts=over(ref)) for ref in ("old", "main")]
    ready = prepare(requested, print)
    old, new = (git(source, "rev-parse", ref) for ref in ("old", "main"))
    assert not ready["without_old"].usable
    assert ready["without_old"].error.startswith(
        f"megatron-lm at main without old: reverting {old[:12]} conflicts in code.py"
    )
    made = ready["without_main"]
    assert (made.usable, made.commits, made.reverted) == (True, {"megatron-lm": new}, {"megatron-lm": (new,)})
    assert (Path(made.paths[0]) / "code.py").read_text() == "# first\n"
    (checked_out,) = made.facts().checkouts
    assert checked_out.text() == f"megatron-lm main = {new} without {new}"
    assert checked_out.text(12) == f"megatron-lm main = {new[:12]} without {new[:12]}"
    assert checked_out.repository == str(source)


def test_errors_in_the_matrix_are_reported_for_all_stacks_before_anything_is_built(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_build, "_runs", lambda uv: False)
    source = repository(tmp_path / "lm")
    known = Checkout(package="megatron-lm", repository=str(source), ref="main")
    wrong = [
        Stack(name="ref", checkouts=(Checkout(package="megatron-lm", repository=str(source), ref="gone"),)),
        Stack(name="back", checkouts=(replace(known, revert=("gone", "old")),)),
        Stack(name="place", checkouts=(Checkout(package="skyrl", repository="/nowhere", ref="main"),)),
        Stack(name="wheel", packages=("six==1.16.0",), python=HERE),
    ]
    with pytest.raises(InputError) as caught:
        prepare(wrong, lambda text: pytest.fail(text))
    assert [str(problem).partition(";")[0] for problem in caught.value.problems] == [
        f"stacks.ref: {source} has no commit, tag or branch 'gone'",
        f"stacks.back: {source} has no commit 'gone' to revert",
        "stacks.place: no git repository at /nowhere",
        "stacks.wheel: uv was not found, and stacks of packages need it",
    ]
    assert not kept.exists()


def test_the_facts_have_the_request_and_the_resolved_versions() -> None:
    requested = Stack(
        name="s", packages=("a==1",), checkouts=(Checkout(package="megatron-lm", repository="/lm", ref="main"),)
    )
    ready = ReadyStack(
        requested=requested, python="/p", packages={"a": "1", "torch": "2"}, commits={"megatron-lm": "0123"}
    )
    facts = ready.facts()
    assert facts == StackFacts(
        requested=("a==1",),
        checkouts=(CheckedOut(project="megatron-lm", ref="main", commit="0123", reverted=(), repository="/lm"),),
        interpreter="/p",
        packages=(Version(name="a", version="1"), Version(name="torch", version="2")),
    )
    assert (facts.commits, facts.versions) == ({"megatron-lm": "0123"}, {"a": "1", "torch": "2"})


def test_checkouts_come_before_the_stacks_own_path_and_the_harness_comes_last() -> None:
    requested = Stack(name="s", packages=("six",), env={"PYTHONPATH": "/own", "A": "1"})
    env = agent_environment(ReadyStack(requested=requested, paths=("/lm", "/bridge/src")), Path("/run/node-code"))
    assert env["PYTHONPATH"] == "/lm:/bridge/src:/own:/run/node-code"
    assert env["A"] == "1"


def test_the_node_code_has_what_ranks_need_and_nothing_of_the_launcher(tmp_path: Path) -> None:
    """In an interpreter without any package: every module but those that need torch is imported."""
    target = copy_node_code(tmp_path / "code")
    folders = ["contracts", "core", "faults", "features", "oracle", "probe", "runtime", "upstreams"]
    assert sorted(path.name for path in (target / "harness").iterdir()) == ["__init__.py", *folders]
    core = (target / "harness" / "core").rglob("[a-z]*.py")
    names = [".".join(path.relative_to(target).with_suffix("").parts) for path in core]
    assert "harness.core.run.run_dir" in names
    names.append("harness.runtime.agent")
    script = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    env = {**os.environ, "PYTHONPATH": str(target)}
    bare = subprocess.run([sys.executable, "-S", "-c", script], cwd="/", env=env, capture_output=True, text=True)
    assert bare.returncode == 0, bare.stderr


def test_a_forecast_shows_what_would_be_built_and_builds_nothing(tmp_path: Path, kept: Path) -> None:
    source = repository(tmp_path / "lm")
    checkout = Checkout(package="megatron-lm", repository=str(source), ref="main")
    requested = [
        Stack(name="wheel", packages=("six==1.16.0",), python=HERE),
        Stack(name="tree", checkouts=(checkout,), interpreter=sys.executable),
        Stack(name="gone", interpreter="/nowhere/python"),
        Stack(
            name="lost",
            packages=("six",),
            python=HERE,
            checkouts=(Checkout(package="skyrl", repository="/x", ref="y"),),
        ),
        Stack(name="other", checkouts=(replace(checkout, ref=""),), interpreter=sys.executable),
        Stack(name="image", container="nvcr/x"),
        Stack(name="back", checkouts=(replace(checkout, revert=("main",)),), interpreter=sys.executable),
        Stack(name="merge", checkouts=(replace(checkout, revert=("gone",)),), interpreter=sys.executable),
    ]
    found = {forecast.stack: forecast for forecast in forecasts(requested)}
    states = {name: [part.state for part in forecast.parts] for name, forecast in found.items()}
    assert states == {
        "wheel": [TO_BUILD],
        "tree": [TO_BUILD, READY],
        "gone": [UNAVAILABLE],
        "lost": [UNAVAILABLE, TO_BUILD],
        "other": [UNAVAILABLE, READY],
        "image": [READY],
        "back": [TO_BUILD, READY],
        "merge": [UNAVAILABLE, READY],
    }
    assert not kept.exists()
    why = f"{source} is no working tree of megatron-lm: it has no megatron/core"
    assert found["other"].lines()[0].endswith(f"unavailable: {why}")
    assert prepared(requested[4]).error == why
    assert found["wheel"].lines()[0].startswith("wheel: environment of six==1.16.0, torch")
    assert found["lost"].lines()[0] == "lost: skyrl at y of /x, unavailable: no git repository at /x"
    commit = git(source, "rev-parse", "main")[:12]
    assert f"({commit})" in found["tree"].lines()[0]
    assert (
        found["back"].lines()[0].startswith(f"back: megatron-lm at main without main of {source} ({commit}), to build")
    )
    assert "has no commit 'gone' to revert" in found["merge"].lines()[0]


@pytest.mark.usefixtures("kept")
def test_a_branch_of_a_url_is_fetched_by_each_run_that_can(tmp_path: Path) -> None:
    source = repository(tmp_path / "lm")
    stack = Stack(
        name="s",
        interpreter=speaking(tmp_path / "python", "3.12.1", "torch"),
        checkouts=(Checkout(package="megatron-lm", repository=source.as_uri(), ref="main"),),
    )
    first = prepared(stack).commits
    git(source, "commit", "--quiet", "--allow-empty", "-m", "later")
    later = prepared(stack).commits
    assert later == {"megatron-lm": git(source, "rev-parse", "main")} != first
    source.rename(tmp_path / "away")
    assert prepared(stack).commits == later


@pytest.mark.parametrize("revert", [(), ("main",)])
def test_stacks_are_prepared_as_forecast(tmp_path: Path, revert: tuple[str, ...]) -> None:
    source = repository(tmp_path / "lm")
    checkout = Checkout(package="megatron-lm", repository=str(source), ref="main", revert=revert)
    python = speaking(tmp_path / "python", "3.12.1", "torch")
    stack = Stack(name="s", interpreter=python, checkouts=(checkout,), env={"A": "1"})
    (before,) = forecasts([stack])
    ready = prepared(stack)
    assert before.ready is not None
    assert (before.ready.python, before.ready.paths, before.ready.commits) == (ready.python, ready.paths, ready.commits)
    assert before.ready.reverted == ready.reverted
    (after,) = forecasts([stack])
    assert [part.state for part in after.parts] == [READY, READY]


def test_a_cached_environment_is_shown_with_its_installed_versions() -> None:
    request = environment_request(Stack(name="s", packages=("six>=1.16",), python=HERE), "")
    assert request is not None
    stack_build.build(replace(request, packages=("six>=1.16",)), print)
    part, _ = stack_forecast._environment_part(replace(request, packages=("six>=1.16",)))
    version = part.packages["six"]
    assert stack_forecast.Forecast(stack="s", parts=(part,)).lines()[1] == f"  has six=={version}"


@pytest.mark.parametrize(("ref", "moved"), [("", True), ("main", False)])
def test_a_working_tree_that_changed_since_the_run_began_is_named(tmp_path: Path, ref: str, moved: bool) -> None:
    source = repository(tmp_path / "source")
    checkout = Checkout(package="megatron-lm", repository=str(source), ref=ref)
    commit = git(source, "rev-parse", "HEAD")
    ready = {"s": ReadyStack(requested=Stack(name="s", checkouts=(checkout,)), commits={"megatron-lm": commit})}
    assert moved_since(ready) == []
    (source / "code.py").write_text("# changed\n")
    found = moved_since(ready)
    assert bool(found) is moved
    if moved:
        assert found[0].startswith(f"stack s: megatron-lm in {source} changed from {commit} to {commit}+changes.")


def test_torch_is_the_harnesss_version_without_its_build_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "version", lambda name: "2.15.0+cpu")
    assert stacks.torch_version() == "2.15.0"


def test_a_stack_that_cannot_be_built_names_the_recipes_for_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise InfrastructureError("uv pip ended with exit code 1")

    monkeypatch.setattr(stacks, "_prepare", fails)
    monkeypatch.setattr(stacks, "_check", lambda _: None)
    bridge, other = Stack(name="b", packages=("megatron-bridge==0.6.2",)), Stack(name="o", packages=("numpy",))
    ready = prepare([bridge, other], print)
    assert "stacks that are known to work: bridge-0.4.2, bridge-0.5.0, bridge-0.6.2" in ready["b"].error
    assert ready["o"].error == "uv pip ended with exit code 1"
