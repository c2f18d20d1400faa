"""The ranks' records decide, not Slurm's job state; and an interrupted launcher only detaches."""

from __future__ import annotations

import signal
import stat
import sys
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from tests.processes import HUNG_S
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab
from tests.slurm.test_trouble import CLUSTERS, ONE, RUN

pytestmark = [pytest.mark.slurm, pytest.mark.train]


def cluster_with_python(lab: SlurmLab, folder: Path, script: str) -> Cluster:
    """A cluster whose jobs start their agents with a shell script instead of the interpreter."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (folder / "own.yaml").write_text(f"{(CLUSTERS / 'slurm-lab.yaml').read_text()}python: {python}\n")
    return Cluster(lab, folder, ONE)


def test_a_job_that_slurm_calls_completed_without_records_leaves_errors(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = cluster_with_python(lab, tmp_path, "exit 0")
    code, output = cluster.run("run", "one.yaml", "--cluster", "./own.yaml")
    assert code == 3, output
    cells = cluster.report().cells
    assert [cell.outcome for cell in cells] == [Outcome.ERROR] * 2
    assert all("ended before the cell did: COMPLETED (exit 0:0)" in cell.reason for cell in cells)


def test_a_job_that_slurm_calls_failed_is_judged_by_the_records_that_its_cells_wrote(
    lab: SlurmLab, tmp_path: Path
) -> None:
    cluster = cluster_with_python(lab, tmp_path, f'"{sys.executable}" "$@"\nexit 7')
    code, output = cluster.run("run", "one.yaml", "--cluster", "./own.yaml")
    assert code == 0, output
    assert [cell.outcome for cell in cluster.report().cells] == [Outcome.PASS] * 2
    for job in cluster.jobs().values():
        cluster.until_accounted(job, "FAILED|7:0")


def test_ctrl_c_detaches_and_says_how_to_come_back(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, ONE)
    launcher = cluster.start(*RUN)
    cluster.until_a_cell_starts(2)
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 130, output
    assert "detached; the jobs keep running" in output
    assert f"harness resume reports/{cluster.directory.name}" in output
    code, output = cluster.run("resume", "latest")
    assert code == 0, output
    assert len(cluster.jobs()) == 2
    files = [path for path in cluster.directory.rglob("*") if path.is_file()]
    assert [path for path in files if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)] == []
