"""Every GPU check fails on broken facts; then torch is probed on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.infra.command import Answer, ask
from harness.infra.doctor.facts import FAIL, OK, WARN, line
from harness.infra.doctor.gpu_checks import GpuFacts, TorchFacts, gpu_checks, job_checks
from harness.infra.doctor.gpu_probe import infiniband_ports, probe_gpus, probe_torch
from harness.plan.jobs.cluster import LOCAL, ClusterProfile, Container

TORCH = TorchFacts(
    cuda="13.0",
    available=True,
    devices=("NVIDIA H200",) * 8,
    capabilities=("sm_90",) * 8,
    kernels=("sm_80", "sm_90", "sm_100", "compute_120"),
    nccl="2.28.9",
    engine="2.9.0",
)
HEADER = "| NVIDIA-SMI 580.159.03    Driver Version: 580.159.03    CUDA Version: {}     |"
WELL = GpuFacts(
    driver=Answer(text=HEADER.format("13.0")),
    torch=TORCH,
    interfaces=("eth0", "ib0"),
    infiniband={"mlx5_0/1": "ACTIVE, 400 Gb/sec (4X NDR)"},
    shm_bytes=64 << 30,
)
NODES = ClusterProfile(name="c", kind="slurm", nodes=4, gpus_per_node=8, env={"NCCL_SOCKET_IFNAME": "ib"})


def test_a_healthy_node_and_a_healthy_login_node_pass_every_check() -> None:
    here = [line(one) for one in gpu_checks(LOCAL, WELL)]
    assert here == [
        "ok    driver            supports CUDA up to 13.0, torch is built for 13.0",
        "ok    torch on GPUs     8: NVIDIA H200, CUDA 13.0, NCCL 2.28.9",
        "ok    TE                Transformer Engine 2.9.0",
        "ok    /dev/shm          64.0 GiB",
    ]
    login = replace(WELL, driver=Answer(problem="not on PATH"), torch=replace(TORCH, available=False, devices=()))
    assert [(one.level, one.what) for one in gpu_checks(NODES, login)] == [
        (OK, "torch on GPUs"),
        (OK, "TE"),
        (OK, "NCCL sockets"),
        (OK, "InfiniBand"),
    ]


@pytest.mark.parametrize(
    ("broken", "level", "what", "said"),
    [
        (
            {"driver": Answer(text=HEADER.format("12.4"))},
            FAIL,
            "driver",
            "up to 12.4, torch is built for 13.0  (update",
        ),
        (
            {"torch": Answer(problem="exit code 1: no libcudnn")},
            FAIL,
            "torch on GPUs",
            "imported: exit code 1: no libcu",
        ),
        ({"torch": replace(TORCH, cuda=None)}, FAIL, "torch on GPUs", "torch is a CPU build"),
        ({"torch": replace(TORCH, available=False)}, FAIL, "torch on GPUs", "CUDA_VISIBLE_DEVICES"),
        (
            {"torch": replace(TORCH, capabilities=("sm_70",))},
            FAIL,
            "torch on GPUs",
            "no kernels for sm_70, only for sm_80",
        ),
        ({"torch": replace(TORCH, engine="")}, WARN, "TE", "varlen"),
        (
            {"torch": replace(TORCH, engine_problem="OSError: libcudart")},
            FAIL,
            "TE",
            "2.9.0 cannot be imported: OSError",
        ),
        ({"shm_bytes": 64 << 20}, WARN, "/dev/shm", "0.1 GiB"),
    ],
)
def test_each_broken_fact_of_a_node_is_reported(broken: dict[str, Any], level: str, what: str, said: str) -> None:
    bad = [one for one in gpu_checks(LOCAL, replace(WELL, **broken)) if one.level != OK]
    assert [(one.level, one.what) for one in bad] == [(level, what)]
    assert said in line(bad[0])
    assert bad[0].fix


@pytest.mark.parametrize(
    ("broken", "what", "said"),
    [
        ({"interfaces": ("eth0",)}, "NCCL sockets", "no ib on this machine, which has eth0"),
        ({"infiniband": {}}, "InfiniBand", "no device"),
        ({"infiniband": {"mlx5_0/1": "DOWN, 10 Gb/sec"}}, "InfiniBand", "no active port on this machine (mlx5_0/1)"),
        ({"memlock_bytes": 65536}, "locked memory", "may lock 64 KiB"),
        ({"torch": replace(TORCH, engine_problem="OSError: libcuda.so.1")}, "TE", "nodes with a driver"),
    ],
)
def test_facts_that_may_differ_on_the_nodes_are_warnings(broken: dict[str, Any], what: str, said: str) -> None:
    bad = [one for one in gpu_checks(NODES, replace(WELL, **broken)) if one.level != OK]
    assert [(one.level, one.what) for one in bad] == [(WARN, what)]
    assert said in line(bad[0])


@pytest.mark.parametrize(
    ("requested", "good"),
    [
        ("ib", True),
        ("ib0", True),
        ("=ib0", True),
        ("=ib", False),
        ("eno1,eth", True),
        ("eno", False),
        ("^docker", True),
    ],
)
def test_interfaces_are_named_as_nccl_reads_them(requested: str, good: bool) -> None:
    profile = replace(NODES, env={"NCCL_SOCKET_IFNAME": requested})
    assert any(one.what == "NCCL sockets" and one.level != OK for one in gpu_checks(profile, WELL)) is not good


def test_a_network_without_infiniband_by_choice_and_torch_in_a_container_are_fine() -> None:
    profile = replace(NODES, env={"NCCL_IB_DISABLE": "1"})
    assert list(gpu_checks(profile, replace(WELL, torch=None, infiniband={}))) == []


@pytest.mark.parametrize(
    ("kernels", "good"), [(("sm_86",), False), (("sm_90",), True), (("sm_90a",), True), (("compute_80",), True)]
)
def test_kernels_run_on_their_major_version_and_ptx_on_later_ones(kernels: tuple[str, ...], good: bool) -> None:
    found = list(gpu_checks(LOCAL, replace(WELL, torch=replace(TORCH, kernels=kernels))))
    assert (found[1].level == OK) is good


def test_ports_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    port = tmp_path / "sys" / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    assert infiniband_ports(port.parents[2]) == {"mlx5_0/1": "ACTIVE, unknown"}
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (tmp_path / "sys" / "class" / "net" / "ib0").mkdir(parents=True)
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    found = probe_gpus(None, {}, lambda *_: Answer(text="x"), tmp_path)
    assert (found.infiniband, found.interfaces) == ({"mlx5_0/1": "ACTIVE, 400 Gb/sec (4X NDR)"}, ("ib0",))
    assert found.shm_bytes > 0
    assert found.torch is None


def test_torch_of_this_machine_is_probed() -> None:
    found = probe_torch(sys.executable, {"CUDA_VISIBLE_DEVICES": ""}, ask)
    assert isinstance(found, TorchFacts)
    assert (found.available, found.devices) == (False, ())
    said = "\n".join(line(one) for one in gpu_checks(LOCAL, replace(WELL, torch=found)))
    assert "FAIL  torch on GPUs     torch " in said
    assert probe_torch("/bin/echo", {}, ask) == Answer(problem="unexpected output: not a Python interpreter?")
    gone = probe_torch("/no/python", {}, ask)
    assert isinstance(gone, Answer)
    assert gone.problem == "no such file"


def test_profile_settings_that_often_go_wrong_on_slurm_are_warnings() -> None:
    careless = ClusterProfile(
        kind="slurm", srun_flags=("--mpi=pmix",), container=Container(image="nvcr.io#nvidia/nemo:25.09")
    )
    assert [(one.level, one.what) for one in job_checks(careless)] == [(WARN, "cores"), (WARN, "MPI"), (WARN, "image")]
    careful = replace(
        careless, cpus_per_task=64, srun_flags=("--mpi=none",), container=Container(image="/images/nemo.sqsh")
    )
    assert list(job_checks(careful)) == []
    assert list(job_checks(replace(careful, cpus_per_task=None, exclusive=True))) == []
