"""The two promises of the first page: the smoke matrix is green, and every known fault is caught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.judge.render_json import read_report
from tests.app.conftest import harness, only_run
from tests.smoke import green, verdicts

pytestmark = pytest.mark.train


def test_the_smoke_matrix_passes_whole(root: Path, tmp_path: Path) -> None:
    done = harness("run", root / "matrices" / "smoke.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "reports")
    assert verdicts(read_report((run / "report.json").read_text())) == green(root)
    assert (run / "report.html").stat().st_size < 3_000_000


def test_the_self_test_catches_every_fault_at_its_place_and_raises_no_false_alarm(tmp_path: Path) -> None:
    done = harness("selftest", cwd=tmp_path)
    summary = json.loads((only_run(tmp_path / "reports") / "selftest.json").read_text())
    missed = [fault for fault in summary["faults"] if fault["problems"]]
    alarms = [cell for cell in summary["clean"] if cell["outcome"] != "PASS"]
    assert (missed, alarms) == ([], []), _said_at_the_end(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    score = summary["score"]
    assert score["faults"] >= 80
    assert score["caught"] == score["right_lane"] == score["right_place"] == score["faults"]
    assert score["false_alarms"] == 0


def _said_at_the_end(text: str) -> str:
    """What is wrong and the score, without the lines of cells and faults before them."""
    return text[text.index("\n\n") :]
