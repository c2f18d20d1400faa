"""The rewriting leg with tp, pp and cp together: two faults in one run are both named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.app.commands import selftest
from harness.judge.report.render_json import read_report

pytestmark = pytest.mark.train


def test_two_faults_at_once_are_told_from_what_inherits_them(tmp_path: Path) -> None:
    assert selftest.run(["two-modules-at-once"], tmp_path) == 0
    (run,) = tmp_path.iterdir()
    report = read_report((run / "report.json").read_text())
    cells = {cell.axes["fault"]: cell for cell in report.cells if cell.role == "cell"}
    found = [finding.where for finding in cells["two-modules-at-once"].findings if finding.check == "rewriting"]
    named = {where["direction"]: (where["modules"], where["stages"]) for where in found}
    assert named == {"forward": (["layer 2"], [0]), "backward": (["layer 5"], [1])}
    assert found[0]["inherited"] == ["layer 3", "layer 4", "layer 5", "layer 6"]
    assert cells["none"].canaries["rewriting"] == "ran"
    assert cells["none"].findings == []
