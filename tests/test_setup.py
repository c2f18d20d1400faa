"""scripts/setup.py on machines with various Pythons, and the targets of the Makefile."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with its root in an empty folder that holds copies of the inputs."""
    module = load_script(ROOT / "scripts" / "setup.py")
    for name in module.INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "setup-done.json")
    monkeypatch.delenv("HARNESS_PYTHON", raising=False)
    return module


def stub(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_stub_that_fails_is_passed_over(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = stub(tmp_path, "python3.12", "echo 'command not found' >&2; exit 127")
    monkeypatch.setattr(setup, "python_candidates", lambda: [str(broken), "/nowhere/python3", sys.executable])
    assert setup.find_python() == sys.executable


def test_a_version_that_is_too_old_is_passed_over(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup.is_good_python(sys.executable)
    monkeypatch.setattr(setup, "VERSIONS", ((3, 99),))
    assert not setup.is_good_python(sys.executable)


def test_an_activated_environment_gives_the_interpreter_that_it_was_made_from(
    setup: ModuleType, tmp_path: Path
) -> None:
    venv.create(tmp_path / "active", with_pip=False)
    python = setup.base_python(str(tmp_path / "active" / "bin" / "python"))
    assert setup.is_good_python(python)
    assert not Path(python).is_relative_to(tmp_path)


def test_a_chosen_python_that_does_not_run_is_an_error_that_names_it(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_PYTHON", "/nowhere/python3")
    with pytest.raises(setup.SetupError, match=r"HARNESS_PYTHON=/nowhere/python3 is not a working Python 3\.12"):
        setup.find_python()


def test_without_a_python_the_error_lists_what_was_tried(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "python_candidates", lambda: ["/nowhere/python3.12"])
    monkeypatch.setattr(setup, "apt_install", lambda *packages: False)
    monkeypatch.setattr(setup, "find_uv", lambda python: "/nowhere/uv")
    with pytest.raises(setup.SetupError, match=r"(?s)/nowhere/python3\.12.*HARNESS_PYTHON"):
        setup.find_python()


def test_an_empty_cache_variable_does_not_reach_uv(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", "")
    assert "UV_CACHE_DIR" not in setup.uv_environment(sys.executable)


def test_uv_gets_the_index_of_pip_unless_it_has_its_own(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(setup, "pip_settings", lambda python: {"index-url": "file:///mirror", "cert": "/ca.pem"})
    env = setup.uv_environment(sys.executable)
    assert (env["UV_DEFAULT_INDEX"], env["SSL_CERT_FILE"]) == ("file:///mirror", "/ca.pem")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///own")
    assert setup.uv_environment(sys.executable)["UV_DEFAULT_INDEX"] == "file:///own"


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "scripts/setup.py"])
def test_the_stamp_counts_only_while_its_inputs_are_the_same(setup: ModuleType, tmp_path: Path, name: str) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    stub(tmp_path / ".venv" / "bin", "python", "exit 0")
    assert not setup.is_done()  # as an interrupted setup leaves it
    setup.STAMP.write_text(json.dumps({"key": setup.stamp_key()}))
    assert setup.is_done()
    with (tmp_path / name).open("a") as stream:
        stream.write("# changed\n")
    assert not setup.is_done()


def test_an_environment_whose_python_is_gone_does_not_count(setup: ModuleType, tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    setup.STAMP.write_text(json.dumps({"key": setup.stamp_key()}))
    assert not setup.is_done()


def make(*arguments: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout


def test_make_alone_lists_every_target_a_user_needs() -> None:
    targets = [line.split()[0] for line in make().splitlines()]
    expected = ["help", "setup", "smoke", "test", "test-all", "test-long", "lint", "types", "unit", "bench", "clean"]
    assert targets == expected


def lanes_of(target: str) -> list[argparse.Namespace]:
    """The arguments of every pytest that a target of the Makefile starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--ignore", action="append", default=[])
    parser.add_argument("-m", dest="marks", required=True)
    parser.add_argument("--durations")
    started = re.findall(r"bin/pytest (.*)", make("-n", target))
    return [parser.parse_args(shlex.split(words)) for words in started]


def selects(lane: argparse.Namespace, folder: Path, marks: dict[str, bool]) -> bool:
    """Whether a lane collects a folder, and in it tests with these marks."""
    here = any(map(folder.is_relative_to, lane.paths or ["tests"])) and not any(map(folder.is_relative_to, lane.ignore))
    return here and eval(lane.marks, {}, marks)


def test_make_test_and_make_test_all_run_every_test_that_is_not_long_once() -> None:
    lanes = lanes_of("test") + lanes_of("test-all")
    names = sorted({name for lane in lanes for name in re.findall(r"\w+", lane.marks)} - {"and", "or", "not"})
    assert {"smoke", "long", "train"} <= set(names)
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    for values in itertools.product((False, True), repeat=len(names)):
        marks = dict(zip(names, values, strict=True))
        for folder in folders if not marks["long"] else ():
            selecting = [lane for lane in lanes if selects(lane, folder, marks)]
            assert len(selecting) == 1, (folder, marks, selecting)


def test_make_test_installs_no_compiler_and_ci_runs_both() -> None:
    assert "--compiler" not in make("-n", "test")
    assert "--compiler" in make("-n", "test-all")
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test", "make test-all"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
