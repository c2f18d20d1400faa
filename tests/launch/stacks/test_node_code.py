"""Compiling ahead, against real environments and interpreters where it matters."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

from harness.core.stack import ReadyStack, Stack
from harness.launch.stacks.node_code import compile_imports, share_bytecode


def test_worktrees_used_once_are_not_compiled_if_their_environment_is(tmp_path: Path) -> None:
    """The interpreter is a script that records each call."""
    python, calls, environment = tmp_path / "python", tmp_path / "calls", tmp_path / "environment"
    python.write_text(f"#!/bin/sh\necho called >> {calls}\n")
    python.chmod(0o755)
    environment.mkdir()
    first, second, third = (
        ReadyStack(requested=Stack(name="s"), python=str(python), paths=(f"/worktree/{number}",)) for number in range(3)
    )
    counts = []
    for stack, once in ((first, True), (second, True), (second, False), (second, False), (third, False)):
        compile_imports(stack, environment, once)
        counts.append(calls.read_text().count("called"))
    assert counts == [1, 1, 2, 2, 3]


def test_environments_with_the_same_files_share_their_bytecode(tmp_path: Path) -> None:
    old, new = (tmp_path / f"py3-{name}" / "lib" / "python3" / "site-packages" / "package" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    for name, text in {"same": "def where(): pass\n", "other": "VALUE = 1\n"}.items():
        (old / f"{name}.py").write_text(text)
        py_compile.compile(str(old / f"{name}.py"))
    os.link(old / "same.py", new / "same.py")
    (new / "other.py").write_text("VALUE = 2\n")
    (tmp_path / "py3-old" / "compiled-1").touch()

    share_bytecode(tmp_path / "py3-new")
    (shared,) = (new / "__pycache__").iterdir()
    assert shared.samefile(old / "__pycache__" / shared.name)
    code = "from package import other, same; print(other.VALUE, same.where.__code__.co_filename)"
    done = subprocess.run(
        [sys.executable, "-v", "-c", code],
        env=os.environ | {"PYTHONPATH": str(new.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"2 {new / 'same.py'}\n"
    assert f"code object from {str(shared)!r}" in done.stderr


def test_nothing_is_shared_with_an_environment_that_is_not_compiled_yet(tmp_path: Path) -> None:
    old, new = (tmp_path / f"py3-{name}" / "lib" / "python3" / "site-packages" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    (old / "module.py").touch()
    py_compile.compile(str(old / "module.py"))
    os.link(old / "module.py", new / "module.py")
    share_bytecode(tmp_path / "py3-new")
    assert [path.name for path in new.iterdir()] == ["module.py"]
