"""The smoke matrix on four nodes: what the first page promises holds on a cluster too."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.judge.render_json import read_report
from harness.judge.report_model import Report
from harness.words.outcomes import Outcome
from tests.app.conftest import only_run
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]


def verdicts(report: Report) -> dict[str, Any]:
    """Outcome, lanes and findings by cell, with the rejected combinations and their reasons."""
    cells = {cell.id: (cell.outcome, cell.lanes, [item.check for item in cell.findings]) for cell in report.cells}
    return {**cells, **{one.id: (one.rule, one.reason) for one in report.rejected}}


def test_the_smoke_matrix_is_green_on_four_nodes_with_the_verdicts_of_one_machine(
    lab: SlurmLab, tmp_path: Path, root: Path, local_smoke: tuple[subprocess.CompletedProcess[str], Path]
) -> None:
    cluster = Cluster(lab, tmp_path, (root / "matrices/smoke.yaml").read_text() + "\nlaunch: {deadline_s: 600}\n")
    code, output = cluster.run("run", str(cluster.matrix), "--cluster", "slurm-lab")
    assert code == 0, output
    report = cluster.report()
    assert report.counts[Outcome.PASS] == len(report.cells) >= 24
    here = read_report((only_run(local_smoke[1] / "reports") / "report.json").read_text())
    assert verdicts(report) == verdicts(here)
    assert {host for cell in cluster.cells() for host in cluster.hosts(cell)} == {"n1", "n2", "n3", "n4"}
