"""Interpreters are found and judged by running them."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError
from harness.launch.stacks import interpreters

HERE = ".".join(platform.python_version_tuple()[:2])


def stub(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_stub_that_fails_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = stub(tmp_path / "python", "echo 'command not found' >&2; exit 127")
    monkeypatch.setattr(interpreters, "candidates", lambda version: iter([broken, sys.executable]))
    assert interpreters.find((HERE,)) == (sys.executable, HERE)


def test_an_interpreter_of_another_version_is_skipped() -> None:
    assert interpreters.runs(sys.executable, HERE)
    assert not interpreters.runs(sys.executable, "3.99")


def test_the_preferred_installed_version_is_used() -> None:
    assert interpreters.find(("3.99", HERE)) == (sys.executable, HERE)


def test_without_one_the_error_names_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = stub(tmp_path / "python3.99", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match=rf"no working Python 3\.99 was found; tried {broken}"):
        interpreters.find(("3.99",))


def test_interpreters_of_version_managers_are_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    stubs = [
        stub(tmp_path / "versions" / "3.99.1" / "bin" / "python3", ""),
        stub(tmp_path / "uv" / "cpython-3.99.1-linux" / "bin" / "python3", ""),
    ]
    assert set(stubs) <= set(interpreters.candidates("3.99"))
    assert not set(stubs) & set(interpreters.candidates("3.98"))


def test_an_interpreter_is_probed_without_the_callers_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "skyrl").mkdir()
    (tmp_path / "skyrl" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = interpreters.ask(sys.executable)
    assert found.version == platform.python_version()
    assert found.prefix == sys.prefix
    assert "pytest" in found.packages
    assert "skyrl" not in found.modules
    assert found.modules["torch"].endswith("torch/__init__.py")


@pytest.mark.parametrize("text", ["exit 3", "echo no json", "exec sleep 0"])
def test_a_program_that_is_not_python_is_an_error_that_names_it(text: str, tmp_path: Path) -> None:
    broken = stub(tmp_path / "python", text)
    with pytest.raises(InfrastructureError, match=broken):
        interpreters.ask(broken)
    with pytest.raises(InfrastructureError, match="/nowhere/python does not run"):
        interpreters.ask("/nowhere/python")


def test_variables_that_redirect_an_interpreter_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("KEPT", "1")
    env = interpreters.clean_environment({"A": "b"})
    assert "PYTHONPATH" not in env
    assert (env["KEPT"], env["A"], env["PYTHONNOUSERSITE"]) == ("1", "b", "1")
