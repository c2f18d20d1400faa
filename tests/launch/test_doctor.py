"""Every check fails on broken facts; then this machine is probed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.infra.command import Answer, ask
from harness.launch.doctor import (
    FAIL,
    MIN_FREE_BYTES,
    OK,
    WARN,
    Check,
    Facts,
    GpuFacts,
    InterpreterFacts,
    RunFolder,
    TorchFacts,
    check_line,
    checks,
    gpu_checks,
    infiniband_ports,
    job_checks,
    named_paths,
    probe,
    probe_folder,
    probe_gpus,
    probe_interpreter,
    probe_torch,
)
from harness.matrix.cluster import LOCAL, ClusterProfile, Container

SLOW = Answer(problem="no answer within 10 s")
PYTHON = InterpreterFacts(
    path="/opt/python", python=(3, 12), harness=True, versions={"torch": "2.9", "megatron-core": "1"}
)
FOLDER = RunFolder(path=Path("/runs"), exists=Path("/runs"), filesystem="lustre", free_bytes=MIN_FREE_BYTES)
WELL = Facts(
    interpreter=PYTHON,
    gpus=Answer(text="GPU 0: NVIDIA H200 (UUID: GPU-1)\n"),
    folder=FOLDER,
    commands={"sbatch": Answer(text="slurm 24.11\n"), "srun": Answer(text="slurm 24.11\n")},
    partitions=Answer(text="main|gpu:h100:8(S:0-1)|1-00:00:00\nspare|(null)|infinite\n"),
    accounts=Answer(text="lab\n"),
    srun_help=Answer(text="  --container-image=..."),
)
SLURM = ClusterProfile(
    name="own",
    kind="slurm",
    partition="main",
    account="Lab",
    gpus_per_node=8,
    exclusive=True,
    container=Container(image="/images/x.sqsh"),
)


def test_a_healthy_cluster_passes_every_check() -> None:
    found = checks(SLURM, WELL)
    assert {check.level for check in found} == {OK}
    names = [check.what for check in found]
    assert names[3:8] == ["sbatch", "srun", "accounting", "controller", "partition"]
    assert "GPUs of nodes     gpu:h100:8" in "\n".join(map(check_line, found))
    assert {"account", "container", "file system", "disk space", "clock"} <= set(names)
    assert not any(check.fix for check in found)


BROKEN_SLURM = [
    ({"interpreter": None}, WARN, "interpreter", "container"),
    ({"interpreter": replace(PYTHON, problem="no such file")}, FAIL, "interpreter", "/opt/python: no such file"),
    ({"interpreter": replace(PYTHON, python=(3, 9))}, FAIL, "interpreter", "3.9"),
    ({"interpreter": replace(PYTHON, harness=False)}, FAIL, "harness", "PYTHONPATH"),
    ({"interpreter": replace(PYTHON, versions={"torch": "2.9"})}, WARN, "megatron-core", "not installed for"),
    ({"interpreter": replace(PYTHON, versions={"megatron-core": "1"})}, WARN, "torch", "not installed for"),
    ({"commands": {**WELL.commands, "sbatch": Answer(problem="not on PATH")}}, FAIL, "sbatch", "not on PATH"),
    ({"commands": {**WELL.commands, "srun": SLOW}}, FAIL, "srun", "within 10 s"),
    ({"accounting": SLOW}, WARN, "accounting", "squeue and heartbeats show"),
    ({"partitions": SLOW}, FAIL, "controller", "slurmctld"),
    (
        {"partitions": Answer(text="spare|gpu:8|1:00:00\n")},
        FAIL,
        "partition",
        "no such partition: main  (partitions: spare)",
    ),
    (
        {"partitions": Answer(text="main|(null)|infinite\nspare|gpu:8|infinite\n")},
        WARN,
        "GPUs of nodes",
        "Slurm lists none",
    ),
    (
        {"partitions": Answer(text="main|gpu:4|infinite\n")},
        FAIL,
        "GPUs of nodes",
        "8 of gpu requested per node, the partition has gpu:4",
    ),
    (
        {"partitions": Answer(text="main|gpu:8|30:00\nspare|gpu:8|infinite\n")},
        FAIL,
        "time",
        "60 minutes requested, the partition allows 30",
    ),
    ({"missing": ("/images/x.sqsh",)}, FAIL, "image", "/images/x.sqsh does not exist"),
    ({"accounts": Answer(text="other\n")}, FAIL, "account", "Lab is not one of your accounts  (your accounts: other)"),
    ({"accounts": SLOW}, WARN, "account", "not checked"),
    ({"srun_help": Answer(text="--container")}, FAIL, "container", "pyxis"),
    ({"srun_help": SLOW}, FAIL, "container", "within 10 s"),
    ({"folder": replace(FOLDER, problem="Read-only file system")}, FAIL, "run directory", "--run-dir"),
    ({"folder": replace(FOLDER, filesystem="ext4")}, WARN, "file system", "set run_dir to a shared folder"),
    ({"folder": replace(FOLDER, free_bytes=MIN_FREE_BYTES - 1)}, FAIL, "disk space", "needs 1 GiB"),
    ({"folder": replace(FOLDER, skew_s=-6.0)}, WARN, "clock", "NTP"),
]


@pytest.mark.parametrize(("broken", "level", "what", "said"), BROKEN_SLURM)
def test_each_broken_fact_is_reported_with_its_fix(broken: dict[str, object], level: str, what: str, said: str) -> None:
    bad = [check for check in checks(SLURM, replace(WELL, **broken)) if check.level != OK]  # type: ignore[arg-type]
    assert [(check.level, check.what) for check in bad] == [(level, what)]
    assert said in check_line(bad[0])


def test_a_gpu_type_that_the_partition_lacks_is_reported() -> None:
    requested = replace(SLURM, gpu_flag="gres", gres="gpu:a100", gpus_per_node=4)
    found = [check_line(one) for one in checks(requested, WELL) if one.level == FAIL]
    assert found == [
        "FAIL  GPUs of nodes     4 of gpu:a100 requested per node, the partition has gpu:h100:8  "
        "(correct gpus_per_node or gres, or choose another partition)"
    ]
    two_kinds = Answer(text="main|gpu:a100:4(S:0),gpu:h100:4(S:1)|infinite\n")
    assert all(one.level == OK for one in checks(requested, replace(WELL, partitions=two_kinds)))


def test_apptainer_is_checked_where_the_profile_names_it() -> None:
    mounts = ("/gone:/x", "/there:/y")
    requested = replace(SLURM, container=Container(image="/i.sif", runtime="apptainer", mounts=mounts))
    well = replace(WELL, srun_help=Answer(text=""), apptainer=Answer(text="apptainer version 1.3.4\n"))
    assert "ok    container         apptainer version 1.3.4" in [check_line(one) for one in checks(requested, well)]
    absent = replace(well, apptainer=Answer(problem="not on PATH"), missing=("/gone",))
    found = [check_line(one) for one in checks(requested, absent) if one.level != OK]
    assert found == [
        "warn  container         apptainer: not on PATH  (nodes must have it on PATH: load its module in setup)",
        "warn  mounts            not on this machine: /gone:/x  (every source must exist on the nodes)",
    ]
    assert named_paths(requested) == ["/i.sif", "/gone", "/there"]
    assert named_paths(replace(SLURM, container=Container(image="nvcr.io#nvidia/pytorch:1"))) == []


@pytest.mark.parametrize("answer", [SLOW, Answer(text="")])
def test_a_driver_that_does_not_answer_fails_on_this_machine_and_its_absence_does_not(answer: Answer) -> None:
    assert [one.what for one in checks(LOCAL, replace(WELL, gpus=answer)) if one.level == FAIL] == ["GPUs"]
    assert all(one.level == OK for one in checks(LOCAL, replace(WELL, gpus=None)))


def test_a_line_has_level_name_detail_and_how_to_fix_it() -> None:
    assert (
        check_line(Check(FAIL, "sbatch", "not on PATH", "load it")) == "FAIL  sbatch            not on PATH  (load it)"
    )
    assert check_line(Check(OK, "clock", "fine")).endswith("fine")


def test_an_interpreter_is_checked_by_running_it(tmp_path: Path) -> None:
    assert probe_interpreter(str(tmp_path / "none"), {}).problem == "no such file"
    assert probe_interpreter("/bin/echo", {}).problem == "unexpected output: not a Python interpreter?"
    blind = probe_interpreter(sys.executable, {"PYTHONPATH": None, "PYTHONHOME": str(tmp_path)})
    assert blind.problem is not None


def test_a_missing_folder_is_probed_at_its_parent_and_nothing_is_left(tmp_path: Path) -> None:
    found = probe_folder(tmp_path / "to" / "come")
    assert (found.exists, found.problem) == (tmp_path, None)
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert probe_folder(tmp_path / "file").problem == "Not a directory"
    assert probe_folder(Path("/proc/self")).problem  # no file can be made there, not even by root


def test_this_machine_runs_cells(tmp_path: Path) -> None:
    found = {check.what: check for check in checks(LOCAL, probe(LOCAL, tmp_path))}
    for what in ("interpreter", "torch", "megatron-core", "GPUs", "run directory", "clock"):
        assert found[what].level == OK, check_line(found[what])


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
WELL_GPUS = GpuFacts(
    driver=Answer(text=HEADER.format("13.0")),
    torch=TORCH,
    interfaces=("eth0", "ib0"),
    infiniband={"mlx5_0/1": "ACTIVE, 400 Gb/sec (4X NDR)"},
    shm_bytes=64 << 30,
)
GPU_NODES = ClusterProfile(name="c", kind="slurm", nodes=4, gpus_per_node=8, env={"NCCL_SOCKET_IFNAME": "ib"})


def test_a_healthy_node_and_a_healthy_login_node_pass_every_check() -> None:
    here = [check_line(one) for one in gpu_checks(LOCAL, WELL_GPUS)]
    assert here == [
        "ok    driver            supports CUDA up to 13.0, torch is built for 13.0",
        "ok    torch on GPUs     8: NVIDIA H200, CUDA 13.0, NCCL 2.28.9",
        "ok    TE                Transformer Engine 2.9.0",
        "ok    /dev/shm          64.0 GiB",
    ]
    login = replace(WELL_GPUS, driver=Answer(problem="not on PATH"), torch=replace(TORCH, available=False, devices=()))
    assert [(one.level, one.what) for one in gpu_checks(GPU_NODES, login)] == [
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
    bad = [one for one in gpu_checks(LOCAL, replace(WELL_GPUS, **broken)) if one.level != OK]
    assert [(one.level, one.what) for one in bad] == [(level, what)]
    assert said in check_line(bad[0])
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
    bad = [one for one in gpu_checks(GPU_NODES, replace(WELL_GPUS, **broken)) if one.level != OK]
    assert [(one.level, one.what) for one in bad] == [(WARN, what)]
    assert said in check_line(bad[0])


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
    profile = replace(GPU_NODES, env={"NCCL_SOCKET_IFNAME": requested})
    assert any(one.what == "NCCL sockets" and one.level != OK for one in gpu_checks(profile, WELL_GPUS)) is not good


def test_a_network_without_infiniband_by_choice_and_torch_in_a_container_are_fine() -> None:
    profile = replace(GPU_NODES, env={"NCCL_IB_DISABLE": "1"})
    assert list(gpu_checks(profile, replace(WELL_GPUS, torch=None, infiniband={}))) == []


@pytest.mark.parametrize(
    ("kernels", "good"), [(("sm_86",), False), (("sm_90",), True), (("sm_90a",), True), (("compute_80",), True)]
)
def test_kernels_run_on_their_major_version_and_ptx_on_later_ones(kernels: tuple[str, ...], good: bool) -> None:
    found = list(gpu_checks(LOCAL, replace(WELL_GPUS, torch=replace(TORCH, kernels=kernels))))
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
    said = "\n".join(check_line(one) for one in gpu_checks(LOCAL, replace(WELL_GPUS, torch=found)))
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
