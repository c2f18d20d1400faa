"""The two promises of README.md: the smoke matrix is green, and every known fault is caught."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.cell.axis_values import HARNESS
from harness.core.outcomes import Lane
from harness.faults.catalogue import FAULTS
from harness.reporting.render_json import read_report
from harness.triage.selftest import with_clones
from tests.cli.conftest import harness, only_run
from tests.smoke import green, verdicts

pytestmark = pytest.mark.train


def test_the_smoke_matrix_passes_whole(root: Path, tmp_path: Path) -> None:
    done = harness("run", root / "matrices" / "smoke.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "reports")
    assert verdicts(read_report((run / "report.json").read_text())) == green(root)
    assert (run / "report.html").stat().st_size < 3_000_000


# Without the faults of the throughput lane, whose verdicts depend on time, those in code of clones that are not there,
# and those of trainers: test_selftest.py.
SELFTEST = [fault for fault in FAULTS if fault.lane is not Lane.THROUGHPUT and fault.trainer == HARNESS]


def test_the_self_test_catches_a_fault_of_each_kind_at_its_place_and_raises_no_false_alarm(tmp_path: Path) -> None:
    """A kind is what checks find it: every check that leads a finding is shown to find something."""
    kinds = {fault.checks: fault.name for fault in reversed(with_clones(SELFTEST))}
    assert len(kinds) >= 60
    _catches([fault.name for fault in SELFTEST if fault.name in kinds.values()], tmp_path)


@pytest.mark.long  # short: the test above
def test_the_self_test_catches_every_fault_at_its_place_and_raises_no_false_alarm(tmp_path: Path) -> None:
    names = [fault.name for fault in with_clones(SELFTEST)]
    assert len(names) >= 83
    _catches(names, tmp_path)


@pytest.mark.long  # minutes on a quiet machine; short: the slow release in test_two_stacks.py
def test_the_self_test_catches_every_slow_kernel(tmp_path: Path) -> None:
    _catches([fault.name for fault in FAULTS if fault.lane is Lane.THROUGHPUT], tmp_path)


def _catches(names: Sequence[str], folder: Path) -> None:
    done = harness("selftest", *(word for name in names for word in ("--only", name)), cwd=folder)
    summary = json.loads((only_run(folder / "reports") / "selftest.json").read_text())
    missed = [fault for fault in summary["faults"] if fault["problems"]]
    alarms = [cell for cell in summary["clean"] if cell["outcome"] != "PASS"]
    assert (missed, alarms) == ([], []), _problems_of(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [fault["fault"] for fault in summary["faults"]] == names
    score = summary["score"]
    assert score["caught"] == score["right_lane"] == score["right_place"] == score["faults"]
    assert score["false_alarms"] == 0


def _problems_of(text: str) -> str:
    """The problems and the score, without the lines of cells and faults before them."""
    return text[text.index("\n\n") :]
