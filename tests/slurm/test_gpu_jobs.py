"""Jobs that ask for GPUs, on a cluster whose GPUs are device files only: Slurm's handling of the requests is real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from tests.docs.first_cluster import profile, shown
from tests.launch.slurm.test_sbatch_template import GOLDENS
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = pytest.mark.slurm

# Values of the goldens that the lab must replace: names of a site, and memory.
OURS = {"partition": "main", "account": None, "qos": None, "mem": None, "gres": "gpu"}


@pytest.mark.parametrize("name", GOLDENS)
def test_slurm_would_start_every_golden_job_file(lab: SlurmLab, root: Path, tmp_path: Path, name: str) -> None:
    golden = GOLDENS[name]
    golden = replace(golden, job=replace(golden.job, exclude=()))
    on_gpus = {"gpus_per_node": 4, "ranks_per_node": 4, "cpus_per_task": 8} if name != "slurm-lab" else {}
    file = tmp_path / "job.sbatch"
    file.write_text(golden.text(root, **OURS, **on_gpus))
    done = lab.run("sbatch", "--test-only", str(file))
    assert (done.returncode, " to start at " in done.stderr) == (0, True), done.stderr


def test_slurm_refuses_a_job_file_that_asks_for_more_gpus_than_a_node_has(
    lab: SlurmLab, root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(GOLDENS["h100-pyxis"].text(root, **OURS))
    done = lab.run("sbatch", "--test-only", str(file))
    assert done.returncode != 0
    assert "node configuration is not available" in done.stderr


def test_the_doctor_prints_what_the_page_on_clusters_shows(lab: SlurmLab, tmp_path: Path) -> None:
    (tmp_path / "my-cluster.yaml").write_text(profile())
    code, output = Cluster(lab, tmp_path).run("doctor", "--cluster", "./my-cluster.yaml")
    assert code == 0, output
    assert [line[:22] for line in output.splitlines()] == [line[:22] for line in shown("ok    interpreter")]


@pytest.mark.train
def test_cells_on_shared_gpu_nodes_get_a_gpu_per_rank(lab: SlurmLab, root: Path, tmp_path: Path) -> None:
    (tmp_path / "my-cluster.yaml").write_text(profile())
    cluster = Cluster(lab, tmp_path, (root / "matrices" / "first_cluster.yaml").read_text())
    wanted = ("--only", "tp2-pp2-cp2-sft")
    code, output = cluster.run("run", str(cluster.matrix), "--cluster", "./my-cluster.yaml", *wanted)
    assert code == 0, output
    assert cluster.report().counts[Outcome.PASS] == 2
    requested = lab.output("scontrol", "show", "job", "-o", cluster.jobs()[cluster.allocation("tp2-pp2-cp2-sft")])
    assert "NumNodes=2 " in requested
    assert "TresPerNode=gres:gpu:4" in requested.replace("gres/gpu", "gres:gpu")
