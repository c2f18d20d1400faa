from __future__ import annotations

from typing import Any

import pytest

from harness.core.errors import InputError
from harness.core.serialization import dumps, from_jsonable, loads
from harness.matrix.cluster import LOCAL, ClusterProfile, Container, load_profile, nodes_for

LAB = {"name": "lab", "kind": "slurm", "ranks_per_node": 8}


def texts(values: Any, lines: dict[tuple[str | int, ...], int] | None = None) -> list[str]:
    """All problems of a profile, as text; fails if it has none."""
    with pytest.raises(InputError) as caught:
        load_profile(values, file="c.yaml", lines=lines or {})
    return [str(problem) for problem in caught.value.problems]


def profile(**more: Any) -> ClusterProfile:
    return load_profile({**LAB, **more}, file="c.yaml", lines={})


def test_a_profile_has_every_key_and_survives_json() -> None:
    made = profile(
        **{
            "gpus_per_node": 8,
            "mem": 0,
            "cpus-per-task": 96,
            "signal": "B:USR1@120",
            "env": {"A": 1, "NCCL_ALGO": None},
        },
        container={"image": "repo#img:1", "mounts": ["/a:/b:ro"], "workdir": "/b"},
        setup=["module load x"],
        exclude=["n1"],
    )
    assert (made.ranks_per_node, made.mem, made.cpus_per_task, made.exclude) == (8, "0", 96, ("n1",))
    assert made.env == {"A": "1", "NCCL_ALGO": None}
    assert made.container == Container(image="repo#img:1", mounts=("/a:/b:ro",), workdir="/b")
    assert from_jsonable(ClusterProfile, loads(dumps(made))) == made


def test_a_node_takes_one_rank_per_gpu_unless_the_profile_says_fewer() -> None:
    assert load_profile({"name": "g", "kind": "slurm", "gpus_per_node": 4}, file="c", lines={}).ranks_per_node == 4
    assert profile(gpus_per_node=8, ranks_per_node=2).ranks_per_node == 2
    assert any("2 ranks on 1 GPUs" in text for text in texts({**LAB, "gpus_per_node": 1, "ranks_per_node": 2}))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, "the profile is empty"),
        ([1], "must be a mapping"),
        ({"kind": "slurm", "ranks_per_node": 1}, "name: is required"),
        ({**LAB, "kind": "pbs"}, "kind: unknown value (found 'pbs'; allowed: 'local' or 'slurm')"),
        ({**LAB, "partion": "x"}, "did you mean 'partition'?"),
        ({**LAB, "launcher": "nemo-run"}, "launcher: was removed with the NeMo-Run launcher"),
        ({**LAB, "launcher": "submitit"}, "delete this key"),
        ({"name": "x", "kind": "slurm"}, "sets neither gpus_per_node nor ranks_per_node"),
        ({"name": "x", "kind": "local", "nodes": 2}, "nodes: has no meaning for kind: local"),
        ({**LAB, 4: 120}, "4: keys must be text"),
        ({**LAB, "account": "a\nb"}, "account: must be one line of text"),
        ({**LAB, "account": ""}, "account: must be one line of text"),
        ({**LAB, "setup": ["a\nrm -rf /"]}, "setup[0]: must be one line of text"),
        ({**LAB, "env": {"A": "x\ny"}}, "env.A: must be one line of text"),
        ({**LAB, "env": {"A B": "x"}}, "env.A B: must be the name of an environment variable"),
        ({**LAB, "env": {"A": True}}, "env.A: must be text"),
        ({**LAB, "mem": "1025T"}, "mem: must be at most 1024T"),
        ({**LAB, "mem": 10**12 - 1}, "mem: must be at most 1024T"),
        ({**LAB, "peak_tflops": {"bf16": 1e9}}, "peak_tflops.bf16: must be at most"),
        ({**LAB, "mem": "lots"}, "mem: must be a size like 0, 500M or 64G (found 'lots')"),
        ({**LAB, "signal": "USR1@x"}, "signal: must be [B:]SIGNAL[@seconds]"),
        ({**LAB, "gres": "gpu;x"}, "gres: must be a resource name"),
        ({**LAB, "gpu_flag": "gpus"}, "gpu_flag: unknown value"),
        ({**LAB, "time": 0}, "time: must be at least 1"),
        ({**LAB, "container": "img"}, "container: must be a mapping"),
        ({**LAB, "container": {"imgae": "x"}}, "did you mean 'image'?"),
        ({**LAB, "container": {"image": "x", "mounts": ["/a"]}}, "container.mounts[0]: must be SOURCE:TARGET"),
        ({**LAB, "container": {"image": "x", "mounts": ["/a:/b,/etc:/etc"]}}, "must be SOURCE:TARGET"),
        ({**LAB, "sbatch_flags": ["-N 4"]}, "--nodes cannot be set here (found -N 4; write nodes)"),
        ({**LAB, "sbatch_flags": ["--switches 1"]}, "must be one flag with its value"),
        (
            {**LAB, "sbatch_flags": ["--array=0-9"]},
            "--array cannot be set here (found --array=0-9; the harness sets it)",
        ),
        ({**LAB, "sbatch_flags": ["--part=x"]}, "--partition cannot be set here (found --part=x; write partition)"),
        ({**LAB, "srun_flags": ["--kill-on-bad-exit=0"]}, "--kill-on-bad-exit cannot be set here"),
        (
            {**LAB, "srun_flags": ["--cpu-bind=mask_cpu:0xfe"]},
            "srun_flags[0]: --cpu-bind cannot be set here (found --cpu-bind=mask_cpu:0xfe; it binds the agent of a "
            "node, and so all of its ranks, to some of the job's cores; leave it out: ranks share the cores that "
            "cpus_per_task asks for)",
        ),
        ({**LAB, "env": {"SLURM_NTASKS": 4}}, "env.SLURM_NTASKS: srun reads --ntasks from SLURM_NTASKS, which cannot"),
        (
            {**LAB, "setup": ["export A=1 SLURM_GPUS_PER_TASK=1"]},
            "setup[0]: srun reads --gpus-per-task from SLURM_GPUS",
        ),
        (
            {**LAB, "cpus_per_task": 2, "sbatch_flags": ["--cpus-per-gpu=2"]},
            "sbatch_flags[0]: excludes cpus_per_task, which is set too",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_what_is_allowed(values: Any, expected: str) -> None:
    found = texts(values)
    assert any(expected in text for text in found), found


def test_all_problems_are_reported_at_once_each_at_its_line() -> None:
    wrong = {**LAB, "nodes": 0, "tiem": 5, "container": {"mounts": "x"}}
    lines = {("nodes",): 4, ("tiem",): 2, ("container",): 5, ("container", "mounts"): 6}
    found = texts(wrong, lines)
    assert [text.split(": ")[:2] for text in found] == [
        ["c.yaml:2", "tiem"],
        ["c.yaml:4", "nodes"],
        ["c.yaml:5", "container.image"],
        ["c.yaml:6", "container.mounts"],
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"env": {"HF_TOKEN": "hunter2"}},
        {"env": {"wandb_api_key": "hunter2"}},
        {"env": {"DB_PASSWORD": "hunter2\nx"}},
        {"env": {"DB": "https://me:hunter2@db"}},
        {"setup": ["pip install git+https://me:hunter2@host/x"]},
        {"setup": ["export HF_TOKEN=hunter2"]},
        {"setup": ["export A=1 MY_SECRET='hunter2'"]},
        {"sbatch_flags": ["--export=ALL,WANDB_API_KEY=hunter2"]},
        {"srun-flags": ["--export=ALL,WANDB_API_KEY=hunter2"]},
    ],
)
def test_a_secret_is_refused_without_being_shown(more: dict[str, Any]) -> None:
    (text,) = texts({**LAB, **more})
    assert "source ~/.harness_secrets" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("line", ['export HF_TOKEN="$(cat ~/.hf)"', "export HF_TOKEN=$OTHER", "module load key/1"])
def test_a_setup_line_that_reads_a_secret_on_the_cluster_is_allowed(line: str) -> None:
    assert profile(setup=[line]).setup == (line,)


def test_a_cell_takes_as_few_nodes_as_hold_its_ranks_or_as_many_as_asked_for() -> None:
    lab = profile()
    assert [nodes_for(world, lab) for world in (1, 8, 9, 16)] == [1, 1, 2, 2]
    assert [nodes_for(world, lab, 4) for world in (1, 2, 16, 64)] == [1, 2, 4, 8]


def test_a_job_is_charged_for_its_ranks_or_for_whole_nodes() -> None:
    assert profile(gpus_per_node=8).gpus_of(2) == 2
    assert profile(gpus_per_node=8, exclusive=True).gpus_of(2) == 8
    assert LOCAL.gpus_of(2) == 0
