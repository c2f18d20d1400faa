"""matrices/two_stacks.yaml: two releases are interleaved, and the slower one is named with its factor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import harness, only_run

pytestmark = pytest.mark.train


def test_the_release_with_slow_rotary_positions_is_slower_when_interleaved(tmp_path: Path, root: Path) -> None:
    done = harness("run", root / "matrices" / "two_stacks.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "reports")
    cells = json.loads((run / "report.json").read_text())["cells"]
    base, slow = (
        next(cell for cell in cells if f"-reference-{stack}-" in cell["id"]) for stack in ("core0182", "core0192")
    )
    assert (base["outcome"], slow["outcome"]) == ("PASS", "XFAIL")
    assert slow["lanes"] == {"metadata": "pass", "numerics": "pass", "throughput": "fail"}
    (ratio,) = slow["throughput"]["ratios"]
    assert (ratio["what"], ratio["verdict"], ratio["rounds"]) == ("over stack core0182, interleaved", "slower", 7)
    assert "time  " in done.stdout and "over stack core0182, interleaved: " in done.stdout
    turns = [path.name for path in run.glob("interleaving/*/attempt-1/*")]
    assert sorted(turns, key=int) == [str(number) for number in range(16)]
