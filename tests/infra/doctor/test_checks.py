"""Every check fails on broken facts; then this machine is probed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.infra.command import Answer
from harness.infra.doctor.checks import LEAST_FREE_BYTES, Facts, InterpreterFacts, RunFolder, checks
from harness.infra.doctor.facts import FAIL, OK, WARN, Check, line
from harness.infra.doctor.probe import named_paths, probe, probe_folder, probe_interpreter
from harness.plan.jobs.cluster import LOCAL, ClusterProfile, Container

SLOW = Answer(problem="no answer within 10 s")
PYTHON = InterpreterFacts(
    path="/opt/python", python=(3, 12), harness=True, versions={"torch": "2.9", "megatron-core": "1"}
)
FOLDER = RunFolder(path=Path("/runs"), exists=Path("/runs"), filesystem="lustre", free_bytes=LEAST_FREE_BYTES)
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
    assert "GPUs of nodes     gpu:h100:8" in "\n".join(map(line, found))
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
    ({"folder": replace(FOLDER, free_bytes=LEAST_FREE_BYTES - 1)}, FAIL, "disk space", "needs 1 GiB"),
    ({"folder": replace(FOLDER, skew_s=-6.0)}, WARN, "clock", "NTP"),
]


@pytest.mark.parametrize(("broken", "level", "what", "said"), BROKEN_SLURM)
def test_each_broken_fact_is_reported_with_its_fix(broken: dict[str, object], level: str, what: str, said: str) -> None:
    bad = [check for check in checks(SLURM, replace(WELL, **broken)) if check.level != OK]  # type: ignore[arg-type]
    assert [(check.level, check.what) for check in bad] == [(level, what)]
    assert said in line(bad[0])


def test_a_gpu_type_that_the_partition_lacks_is_reported() -> None:
    requested = replace(SLURM, gpu_flag="gres", gres="gpu:a100", gpus_per_node=4)
    found = [line(one) for one in checks(requested, WELL) if one.level == FAIL]
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
    assert "ok    container         apptainer version 1.3.4" in [line(one) for one in checks(requested, well)]
    absent = replace(well, apptainer=Answer(problem="not on PATH"), missing=("/gone",))
    found = [line(one) for one in checks(requested, absent) if one.level != OK]
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
    assert line(Check(FAIL, "sbatch", "not on PATH", "load it")) == "FAIL  sbatch            not on PATH  (load it)"
    assert line(Check(OK, "clock", "fine")).endswith("fine")


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
        assert found[what].level == OK, line(found[what])
