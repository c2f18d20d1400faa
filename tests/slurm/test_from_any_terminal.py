"""`run --detach`, and then doctor, status, logs, resume and cancel from other processes, on the real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = pytest.mark.slurm


def test_a_detached_run_is_inspected_and_ended_from_other_terminals(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path)
    lab.output("scontrol", "update", "nodename=n[1-4]", "state=drain", "reason=test")  # jobs stay pending
    try:
        code, output = cluster.run("run", str(cluster.matrix), "--cluster", "slurm-lab", "--detach")
        name = f"reports/{cluster.directory.name}"
        assert code == 0, output
        assert "3 jobs submitted" in output
        assert all(f"harness {verb} {name}" in output for verb in ("resume", "status", "cancel"))
        assert lab.output("squeue", "-h", "-r", "-o", "%T").split() == ["PENDING"] * 3
        assert "Jobs: 3 PENDING\n3 jobs wait in the queue: " in cluster.run("status", name)[1]
        assert "no job has written a log yet" in cluster.run("logs", name)[1]
        assert cluster.run("cancel", name)[0] == 0
        lab.wait_for(lambda: lab.output("squeue", "-h") == "", 30, "no job left")
    finally:
        lab.output("scontrol", "update", "nodename=n[1-4]", "state=resume")


@pytest.mark.train
def test_a_detached_run_is_judged_by_resume_and_its_logs_are_shown(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path)
    only = ("--cluster", "slurm-lab", "--only", "tp2-pp2-cp1-*", "--detach")
    assert cluster.run("run", str(cluster.matrix), *only)[0] == 0
    code, output = cluster.run("resume", "latest")
    assert code == 0, output
    assert "/submissions/" in cluster.run("logs", "latest")[1]
    text = cluster.run("logs", "latest", "tp2-pp2-cp1-*")[1]
    assert "attempt 1: completed" in text
    assert "rank-00000.log (completed)" in text
    assert len(cluster.jobs()) == 2  # of the cell and of its control


def test_the_doctor_passes_a_running_cluster_and_reports_an_unknown_partition(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path)
    code, output = cluster.run("doctor", "--cluster", "slurm-lab")
    assert code == 0, output
    assert "FAIL" not in output
    for what in ("sbatch", "srun", "accounting", "controller", "partition"):
        assert f"ok    {what}" in output
    (tmp_path / "other.yaml").write_text(
        "{name: other, kind: slurm, partition: nowhere, account: nobody, ranks_per_node: 8, container: {image: x}}\n"
    )
    code, output = cluster.run("doctor", "--cluster", "./other.yaml")
    assert code == 3
    for line in (
        "FAIL  partition         no such partition: nowhere  (partitions: ",
        "FAIL  account           nobody is not one of your accounts",
        "FAIL  container",
    ):
        assert line in output
