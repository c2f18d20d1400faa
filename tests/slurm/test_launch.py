"""Whole runs on the real cluster: verdicts, a killed launcher, a dead node, a cancelled run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.events import read_lines
from tests.processes import HUNG_S
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]


@pytest.fixture
def cluster(lab: SlurmLab, tmp_path: Path) -> Iterator[Cluster]:
    yield Cluster(lab, tmp_path)


@pytest.mark.smoke
def test_cells_on_one_and_on_two_nodes_pass_and_sbatch_gets_the_rendered_file(cluster: Cluster) -> None:
    code, output = cluster.run("run", str(cluster.matrix), "--cluster", "slurm-lab")
    assert code == 0, output
    report = cluster.report()
    assert report.counts[Outcome.PASS] == len(report.cells) == 3
    for name, job in cluster.jobs().items():
        rendered = next((cluster.directory / "submissions").glob(f"{name.rpartition('-')[0]}*.sbatch")).read_text()
        received = cluster.lab.output("scontrol", "write", "batch_script", job.partition("_")[0], "-")
        assert received == rendered.strip()
        cluster.until_accounted(job, "COMPLETED|0:0")
    wide = next(cell for cell in report.cells if cell.layout.world_size == 16)
    assert len({rank.place for rank in wide.ranks}) == 16


def test_a_killed_launcher_is_resumed_and_no_job_is_submitted_twice(cluster: Cluster) -> None:
    launcher = cluster.start("run", str(cluster.matrix), "--cluster", "slurm-lab")
    cluster.until_submitted(3)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    jobs = cluster.jobs()
    assert "of 3 cells have ended" in cluster.run("status", "latest")[1]
    code, output = cluster.run("resume", "latest")
    assert code == 0, output
    assert cluster.jobs() == jobs
    assert cluster.report().counts[Outcome.PASS] == 3
    assert cluster.lab.output("sacct", "-n", "-X", "-P", "-o", "JobID,Comment").count(cluster.directory.name) <= 3


def test_cells_of_a_dead_node_run_again_elsewhere_and_are_flaky(cluster: Cluster) -> None:
    launcher = cluster.start("run", str(cluster.matrix), "--cluster", "slurm-lab", "--only", "tp2-pp2-cp1-sft")
    node = cluster.until_a_cell_starts(4)
    try:
        cluster.lab.kill_node(node)
        output, _ = launcher.communicate(timeout=HUNG_S)
    finally:
        cluster.lab.start_node(node)
    outcomes = {cell.id.rpartition("-")[0]: cell for cell in cluster.report().cells}
    assert launcher.returncode == 0, output
    assert outcomes["tp2-pp2-cp1-sft"].outcome is Outcome.FLAKY
    (again,) = [event for event in read_lines(cluster.directory / "events.jsonl") if event["event"] == "retry"]
    assert f"NODE_FAIL on {node}" in again["why"]
    first = json.loads(next(cluster.directory.glob("cells/tp2-*/attempt-1/result.json")).read_text())
    assert (first["status"], "NODE_FAIL" in first["reason"]) == ("error", True)
