"""matrices/real_faults.yaml: released wheels fail in the lane where they are known to, and only there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import harness, only_run

pytestmark = [pytest.mark.train, pytest.mark.long]  # short: the slow release in test_two_stacks.py
SLOW, FLAT = ("core0140", "core0192"), ("core0161", "core0171", "core0182")


@pytest.fixture(scope="module")
def rotary(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    """The cells of the rotary slope, by stack."""
    folder = tmp_path_factory.mktemp("rotary")
    only = [option for stack in (*SLOW, *FLAT) for option in ("--only", f"tp1-pp1-cp1-reference-{stack}")]
    done = harness("run", root / "matrices" / "real_faults.yaml", *only, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((only_run(folder / "reports") / "report.json").read_text())["cells"]
    return {cell["axes"]["stack"]: cell for cell in cells if cell["role"] == "cell"}


@pytest.mark.parametrize("stack", SLOW)
def test_rotary_positions_document_by_document_are_slow_in_the_throughput_lane_alone(
    rotary: dict[str, Any], stack: str
) -> None:
    cell = rotary[stack]
    assert cell["outcome"] == "XFAIL"
    assert cell["lanes"] == {"metadata": "pass", "numerics": "pass", "throughput": "fail"}
    found = cell["findings"][0]
    assert (found["check"], found["where"]["part"]) == ("segment_slope", "rotary")
    assert found["measured"] > found["bound"] == 2.0
    assert f"takes {found['measured']:.3g} times" in found["message"]


@pytest.mark.parametrize("stack", FLAT)
def test_rotary_positions_of_the_whole_pack_at_once_pass(rotary: dict[str, Any], stack: str) -> None:
    assert rotary[stack]["outcome"] == "PASS"
    assert set(rotary[stack]["lanes"].values()) == {"pass"}
