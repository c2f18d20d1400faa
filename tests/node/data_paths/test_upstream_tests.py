"""pytest runs on a folder in place of a checkout."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.data_paths.own import UpstreamTests
from harness.core.outcomes import Missing
from harness.node.data_paths import upstream_tests
from harness.node.data_paths.base import RankContext
from harness.node.data_paths.upstream_tests import UpstreamTestsPath
from harness.node.device.placement import Device
from tests.node.conftest import config

FILE = "tests/unit_tests/test_packing.py"
TESTS = """
import os
import pytest
import beside

def test_one(): assert "RANK" not in os.environ
def test_two(): assert beside.VALUE == 2
def test_three(): assert beside.VALUE == 3
@pytest.mark.skip(reason="needs a GPU")
def test_four(): pass
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with its modules in `src`, which is on the module search path."""
    root = tmp_path / "checkout"
    (root / FILE).parent.mkdir(parents=True)
    (root / FILE).write_text(TESTS)
    (root / "src").mkdir()
    (root / "src" / "beside.py").write_text("VALUE = 2\n")
    monkeypatch.setattr(sys, "path", [str(root / "src"), *sys.path])
    monkeypatch.setenv("RANK", "0")
    return root


def cell(file: str = FILE, select: str = "") -> CellConfig:
    tests = UpstreamTests(name="packing", file=file, select=select, passed=2)
    return replace(config("upstream_tests"), upstream_tests=tests)


def reason(given: CellConfig) -> str:
    found = UpstreamTestsPath.unavailable(given)
    assert isinstance(found, Missing)
    return found.reason


def test_tests_run_apart_from_the_rank_and_are_counted(checkout: Path, tmp_path: Path) -> None:
    given = cell()
    assert UpstreamTestsPath.unavailable(given) is None
    place = Coordinates(tp=0, cp=0, dp=0, pp=0)
    path = UpstreamTestsPath(
        RankContext(config=given, place=place, device=Device(kind="cpu", backend="gloo"), folder=tmp_path)
    )
    seen = path.tests_seen()
    assert (seen.passed, seen.failed, seen.skipped) == (2, 1, 1)
    assert seen.failures == ["tests.unit_tests.test_packing::test_three"]
    assert "1 failed, 2 passed, 1 skipped" in (tmp_path / "upstream_tests.log").read_text()
    assert (tmp_path / "upstream_tests.xml").is_file()


def test_what_cannot_be_collected_proves_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "collects no tests" in reason(cell(select="five"))
    assert "is in no checkout of this stack" in reason(cell(file="tests/gone.py"))
    (checkout / "src" / "beside.py").unlink()
    assert "No module named 'beside'" in reason(cell())
    monkeypatch.setattr(upstream_tests, "find_spec", lambda name: None)
    assert "pytest is not installed" in reason(cell())
