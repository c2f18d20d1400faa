"""The profile that `harness init` writes: from Slurm's answers to a file that loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.scaffold import Cluster, look_for_cluster, profile_text
from harness.inputs.cluster_file import read_profile
from tests.launch.scheduler import AWAY, Scheduler, fails, says

GOLDEN = Path(__file__).parent / "golden"
GPU_NODES = ("debug|(null)|2|16|30:00", "batch*|gpu:h100:8(S:0-1)|16|128|4:00:00", "long|gpu:h100:8|4|64+|UNLIMITED")
ROUTES = "Iface\tDestination\tGateway\nib0\t0000FEA9\t00000000\neth3\t00000000\t0101A8C0\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    found = Scheduler(tmp_path, monkeypatch, ("scontrol", "sacctmgr", "apptainer"))
    found.answers("sinfo", says(*GPU_NODES))
    found.answers("scontrol", says("Configuration data as of 2026-11-25T10:00:00", "ClusterName             = big one"))
    found.answers("sacctmgr", says("physics", "physics", "maths"))
    found.answers("srun", says("  --container-image=[USER@][REGISTRY#]IMAGE"))
    found.answers("apptainer", fails("not here"))
    return found


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """The root of a file system with an active InfiniBand port, one that is down, and a default route."""
    for number, state in ((0, "4: ACTIVE"), (1, "1: DOWN")):
        port = tmp_path / f"system/sys/class/infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (tmp_path / "system/proc/net").mkdir(parents=True)
    (tmp_path / "system/proc/net/route").write_text(ROUTES)
    return tmp_path / "system"


def found(system: Path) -> Cluster:
    cluster = look_for_cluster(Path("/"), system)
    assert cluster is not None
    return cluster


def test_the_whole_profile_of_gpu_nodes(slurm: Scheduler, system: Path, tmp_path: Path) -> None:
    text = profile_text(found(system), Path("clusters/big.yaml")).replace(found(system).filesystem, "FILESYSTEM")
    assert text == (GOLDEN / "gpus_and_pyxis.yaml").read_text()
    (tmp_path / "big.yaml").write_text(text)
    profile = read_profile(tmp_path / "big.yaml")
    assert (profile.name, profile.partition, profile.account) == ("big", "batch", "physics")
    assert (profile.nodes, profile.gpus_per_node, profile.ranks_per_node, profile.time) == (4, 8, 8, 60)


def test_the_whole_profile_of_nodes_without_gpus(slurm: Scheduler, tmp_path: Path) -> None:
    slurm.answers("sinfo", says("main*|(null)|2|4|20:00"))
    slurm.answers("sacctmgr", fails("no accounting"))
    slurm.answers("scontrol", fails("away"))
    slurm.answers("srun", says("no containers"))
    slurm.answers("apptainer", says("apptainer version 1.3.4"))
    text = profile_text(found(tmp_path), Path("clusters/slurm.yaml")).replace(found(tmp_path).filesystem, "FILESYSTEM")
    assert text == (GOLDEN / "cpus_and_apptainer.yaml").read_text()
    (tmp_path / "slurm.yaml").write_text(text)
    profile = read_profile(tmp_path / "slurm.yaml")
    assert (profile.name, profile.partition, profile.account) == ("slurm", "main", None)
    assert (profile.nodes, profile.gpus_per_node, profile.ranks_per_node, profile.time) == (2, 0, 4, 20)


def test_names_that_yaml_would_not_read_as_text_are_quoted(slurm: Scheduler, tmp_path: Path) -> None:
    slurm.answers("sinfo", says("7:x*|gpu:2|2|4|20:00"))
    slurm.answers("sacctmgr", says("20410", "null"))
    (tmp_path / "x.yaml").write_text(profile_text(found(tmp_path), Path("x.yaml")))
    profile = read_profile(tmp_path / "x.yaml")
    assert (profile.partition, profile.account) == ("7:x", "20410")


def test_without_slurm_or_its_controller_there_is_no_profile(
    slurm: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.answers("sinfo", fails(AWAY))
    assert look_for_cluster(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look_for_cluster(tmp_path) is None
    assert slurm.calls("scontrol") == []
