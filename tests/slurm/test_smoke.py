"""The smoke matrix passes on four nodes too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab
from tests.smoke import green, verdicts

pytestmark = [pytest.mark.slurm, pytest.mark.train, pytest.mark.long]  # short: test_launch.py, test_hang.py


def test_the_smoke_matrix_is_green_on_four_nodes(lab: SlurmLab, tmp_path: Path, root: Path) -> None:
    cluster = Cluster(lab, tmp_path, (root / "matrices/smoke.yaml").read_text() + "\nlaunch: {deadline_s: 600}\n")
    code, output = cluster.run("run", str(cluster.matrix), "--cluster", "slurm-lab")
    assert code == 0, output
    assert verdicts(cluster.report()) == green(root)
    assert {host for cell in cluster.cells() for host in cluster.hosts(cell)} == {"n1", "n2", "n3", "n4"}
