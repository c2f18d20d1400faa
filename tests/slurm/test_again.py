"""Undecided cells run again on request, and a job file that sbatch refuses affects no other cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from tests.processes import HUNG_S
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab
from tests.slurm.test_trouble import CLUSTERS, ONE, RUN

pytestmark = [pytest.mark.slurm, pytest.mark.train]


def test_cells_of_a_cancelled_run_are_classified_and_run_again_on_request(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, ONE)
    lab.output("scontrol", "update", "nodename=n[1-4]", "state=drain", "reason=test")  # jobs stay pending
    try:
        launcher = cluster.start(*RUN)
        cluster.until_submitted(2)
        assert cluster.run("cancel", "latest")[0] == 0
        output, _ = launcher.communicate(timeout=HUNG_S)
    finally:
        lab.output("scontrol", "update", "nodename=n[1-4]", "state=resume")
    assert launcher.returncode == 3, output
    cancelled = cluster.report().cells
    assert {cell.failure.failure_class for cell in cancelled if cell.failure} == {"cancelled"}
    assert all("--cluster slurm-lab" in cell.reproduce for cell in cancelled)
    code, output = cluster.run("resume", "latest")
    assert (code, len(cluster.jobs())) == (3, 2), "without --errors nothing is submitted"
    code, output = cluster.run("resume", "latest", "--errors")
    assert code == 0, output
    assert "retrying 2 cells that ended as ERROR" in output
    assert [(cell.outcome, cell.attempts) for cell in cluster.report().cells] == [(Outcome.FLAKY, 2)] * 2


def test_cells_of_a_shape_that_sbatch_refuses_are_errors_and_the_others_are_judged(
    lab: SlurmLab, tmp_path: Path
) -> None:
    cluster = Cluster(lab, tmp_path, f"{ONE.replace('tp: 2', 'dp: 4')}launch: {{nodes_per_cell: 4}}\n")
    profile = (CLUSTERS / "slurm-lab.yaml").read_text()
    (tmp_path / "three.yaml").write_text(f"{profile}exclude: [n1]\n")  # so that no job can have four nodes
    code, output = cluster.run("run", "one.yaml", "--cluster", "./three.yaml")
    assert code == 3, output
    control, wide = sorted(cluster.report().cells, key=lambda cell: cell.layout.world_size)
    assert (control.outcome, wide.outcome) == (Outcome.PASS, Outcome.ERROR)
    assert "sbatch refused the job file" in wide.reason
    assert "Requested node configuration is not available" in wide.reason
