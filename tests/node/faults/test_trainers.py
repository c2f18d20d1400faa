"""The edit of a function's code, on functions of the standard library and of this file."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.node.data_paths.base import RankContext
from harness.node.device.placement import Device
from harness.node.faults.trainers import OF_TESTS, Edit, TrainerEdited, UnitTestsEdited


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


def test_pytest_gets_the_plugin_of_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PYTEST_PLUGINS", raising=False)
    monkeypatch.setitem(os.environ, "PYTEST_PLUGINS", "")  # restored afterwards
    file = tmp_path / "test_two.py"
    file.write_text("def test_first() -> None: ...\ndef test_last() -> None: raise ValueError\n")
    place = Layout().coordinates(0)
    context = RankContext(
        config=CellConfig(layout=Layout(), data_path="upstream_tests"),
        place=place,
        device=Device(kind="cpu", backend="gloo"),
        folder=tmp_path,
    )
    UnitTestsEdited(OF_TESTS["last-test-not-collected"]).on_path(None, context)
    argv = [sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "1 passed" in done.stdout
