"""Runs on a real cluster with failures: services that are down, jobs that die, nodes that are lost or preempted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.events import read_lines
from harness.infra.files import shipped
from tests.processes import HUNG_S
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]
CLUSTERS = shipped("matrices") / "clusters"
ONE = """\
name: one
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  layout: [{tp: 2, pp: 1, cp: 1}]
  packing: sft
"""
LONG = ONE.replace("steps: 2", "steps: 100")  # a cell does not end before what a test does to its node
RUN = ("run", "one.yaml", "--cluster", "slurm-lab")


@pytest.fixture
def cluster(lab: SlurmLab, tmp_path: Path) -> Cluster:
    return Cluster(lab, tmp_path, ONE)


@pytest.fixture
def long_cluster(lab: SlurmLab, tmp_path: Path) -> Cluster:
    return Cluster(lab, tmp_path, LONG)


@pytest.fixture(scope="module")
def plain_lab(may_run_slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """A cluster without accounting: sacct always fails."""
    lab = SlurmLab(tmp_path_factory.mktemp("plain"), accounting=False)
    lab.start()
    try:
        yield lab
    finally:
        lab.stop()
        shutil.rmtree(lab.folder)


def all_pass(cluster: Cluster) -> bool:
    report = cluster.report()
    return report.counts[Outcome.PASS] == len(report.cells) == 2


def test_without_accounting_cells_pass(plain_lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(plain_lab, tmp_path, ONE)
    assert cluster.lab.run("sacct").returncode != 0
    code, output = cluster.run(*RUN)
    assert code == 0, output
    assert all_pass(cluster)


def test_without_accounting_a_job_that_dies_silently_is_noticed(plain_lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(plain_lab, tmp_path, LONG)
    launcher = cluster.start(*RUN)
    cluster.until_a_cell_starts(2)
    cluster.kill_agents()
    output, _ = launcher.communicate(timeout=HUNG_S)
    cell = next(cell for cell in cluster.report().cells if cell.layout.world_size == 2)
    assert (launcher.returncode, cell.outcome) == (3, Outcome.ERROR), output
    assert "ended before the cell did: FAILED" in cell.reason


def test_slurmdbd_may_be_down_during_a_run(cluster: Cluster) -> None:
    launcher = cluster.start(*RUN)
    cluster.until_submitted(2)
    cluster.lab.stop_accounting()
    try:
        output, _ = launcher.communicate(timeout=HUNG_S)
    finally:
        cluster.lab.start_accounting()
    assert launcher.returncode == 0, output
    assert all_pass(cluster)


def test_slurmctld_may_restart_during_a_run(cluster: Cluster) -> None:
    launcher = cluster.start(*RUN)
    cluster.until_a_cell_starts(2)
    cluster.lab.restart_controller()
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 0, output
    assert all_pass(cluster)


def test_cells_of_a_node_set_down_by_hand_run_again_elsewhere(long_cluster: Cluster) -> None:
    launcher = long_cluster.start(*RUN)
    node = long_cluster.until_a_cell_starts(2)
    long_cluster.lab.output("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        output, _ = launcher.communicate(timeout=HUNG_S)
    finally:
        long_cluster.lab.output("scontrol", "update", f"nodename={node}", "state=resume")
    assert launcher.returncode == 0, output
    again = [event for event in read_lines(long_cluster.directory / "events.jsonl") if event["event"] == "retry"]
    assert "1n2r" in {event["allocation"]["array"].partition("-")[0] for event in again}
    assert all(f"NODE_FAIL on {node}" in event["why"] for event in again)  # the control may have been there too
    outcomes = {cell.layout.world_size: cell.outcome for cell in long_cluster.report().cells}
    assert outcomes[2] is Outcome.FLAKY


def test_a_preempted_job_continues_after_its_requeue(long_cluster: Cluster) -> None:
    profile = (CLUSTERS / "slurm-lab.yaml").read_text().replace("partition: main", "partition: low\nrequeue: true")
    (long_cluster.folder / "low.yaml").write_text(profile)
    launcher = long_cluster.start("run", "one.yaml", "--cluster", "./low.yaml")
    long_cluster.until_a_cell_starts(2)
    long_cluster.lab.output("sbatch", "--partition=high", "--nodes=4", "--exclusive", "--wrap=true")
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 0, output
    report = long_cluster.report()
    assert {cell.outcome for cell in report.cells} <= {Outcome.PASS, Outcome.FLAKY}
    assert report.counts[Outcome.FLAKY] >= 1, "what the first start did not finish ran as a second attempt"
    states = long_cluster.lab.output(
        "sacct", "-D", "-n", "-X", "-P", "-o", "State", "-j", ",".join(long_cluster.jobs().values())
    )
    assert "PREEMPTED" in states.split()


def test_two_launchers_on_one_cluster_do_not_mix_up_their_jobs(lab: SlurmLab, tmp_path: Path) -> None:
    clusters = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        clusters.append(Cluster(lab, tmp_path / name, ONE))
    launchers = [cluster.start(*RUN) for cluster in clusters]
    for cluster, launcher in zip(clusters, launchers, strict=True):
        output, _ = launcher.communicate(timeout=HUNG_S)
        assert launcher.returncode == 0, output
        assert all_pass(cluster)
    first, second = (set(cluster.jobs().values()) for cluster in clusters)
    assert len(first) == len(second) == 2
    assert not first & second
