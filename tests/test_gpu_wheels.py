"""Wheels for a machine without a network: which are downloaded, and what happens with a Python that lacks some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import load_script


@pytest.fixture(scope="module")
def wheels(root: Path) -> ModuleType:
    return load_script(root / "scripts" / "gpu_wheels.py")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with nothing but its standard library."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_everything_is_brought_but_torch_and_what_needs_a_network(wheels: ModuleType) -> None:
    names = {name.split(">")[0] for name in wheels._wanted()}
    assert {"megatron-core", "submitit", "pydantic", "numpy", "pytest", "pytest-timeout"} <= names
    assert names & {"torch", "triton", "uv"} == set()


def test_versions_are_pinned_for_our_pythons_only(wheels: ModuleType, tmp_path: Path) -> None:
    for python, pinned in (("3.12", True), ("3.10", False)):
        argv = wheels._resolve(tmp_path, tmp_path / "lock", python, "x86_64")
        assert ("--constraints" in argv) is pinned
        assert argv[argv.index("--python-version") + 1] == python
    assert "torch; sys_platform == 'never'" in (tmp_path / "left-out.txt").read_text().splitlines()


def test_a_python_that_lacks_nothing_is_taken_as_it_is(wheels: ModuleType, tmp_path: Path) -> None:
    found = wheels.ready(tmp_path / "none", tmp_path / "venv", sys.executable, None)
    assert Path(found) == Path(sys.executable)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_over_an_environment_sees_its_packages_and_is_taken_again(
    wheels: ModuleType, tmp_path: Path
) -> None:
    base = wheels._ask(sys.executable)
    python = wheels._overlay(base, tmp_path / "venv")
    assert wheels._ask(str(python)).lacking == []
    done = subprocess.run([python, "-c", "import six, sys; print(sys.prefix)"], capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "venv")
    assert wheels.ready(tmp_path / "none", tmp_path / "venv", sys.executable, None) == str(python)


def test_transformer_engine_finds_the_libraries_of_the_machine_in_the_environment(
    wheels: ModuleType, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages"
    (packages / "nvidia" / "cudnn" / "lib").mkdir(parents=True)
    base = wheels._ask(sys.executable)._replace(path=[str(tmp_path / "none" / "site-packages"), str(packages)])
    python = wheels._overlay(base, tmp_path / "venv")
    looked = "import os, sysconfig; print(os.listdir(sysconfig.get_path('purelib') + '/nvidia/cudnn'))"
    assert subprocess.check_output([python, "-c", looked], text=True).strip() == "['lib']"


def test_a_machine_without_torch_is_told_what_was_tried(wheels: ModuleType, bare: str, tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelsError, match=r"no Python with torch .*without torch.*HARNESS_PYTHON="):
        wheels.ready(tmp_path, tmp_path / "venv", bare, None)
    with pytest.raises(wheels.WheelsError, match="/no/python: does not run"):
        wheels.ready(tmp_path, tmp_path / "venv", "/no/python", None)


def test_missing_wheels_and_those_of_another_python_are_named_with_the_command(
    wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = wheels._ask(sys.executable)._replace(lacking=["megatron.core"])
    monkeypatch.setattr(wheels, "_ask", lambda python: lacks)
    with pytest.raises(wheels.WheelsError, match=rf"no wheels in .*pack --python {lacks.version}"):
        wheels.ready(tmp_path, tmp_path / "venv", sys.executable, None)
    (tmp_path / "pip-26-py3-none-any.whl").touch()
    (tmp_path / "pack.json").write_text(json.dumps({"python": "3.9", "machine": "x86_64"}))
    with pytest.raises(wheels.WheelsError, match=rf"are for Python 3\.9, .* is {lacks.version}; pack again"):
        wheels.ready(tmp_path, tmp_path / "venv", sys.executable, None)


def test_the_command_says_what_is_missing_and_ends_with_3(root: Path, bare: str, tmp_path: Path) -> None:
    command = [sys.executable, root / "scripts" / "gpu_wheels.py", "ready", "--into", tmp_path / "venv"]
    done = subprocess.run(command, env={"HARNESS_PYTHON": bare}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert "without torch" in done.stderr.splitlines()[-1]
