from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation, RunPlan
from harness.core.serialization import from_jsonable, loads
from harness.core.stack import ModuleHome, ReadyStack, Stack
from harness.infra.files import shipped
from harness.launch.allocations import plan_allocations
from harness.launch.slurm.submit import parallel_ranks, write_submissions
from harness.matrix.cluster import ClusterProfile, Container
from harness.matrix.schema.sections import Launch
from tests.matrix.helpers import expand_axes

LAB = ClusterProfile(name="lab", kind="slurm", nodes=4, ranks_per_node=8)
TEMPLATE = shipped("sbatch_templates") / "default.sbatch.j2"
LAUNCH = Launch(cells_per_allocation=2, nodes_per_cell=2, throttle=5)


def plan() -> RunPlan:
    made = expand_axes({"tp": 2, "micro_batch_size": [1, 2], "packing": ["sft", "reference"]})
    return RunPlan(
        run_id="t-1",
        matrix_name="t",
        matrix_file="t.yaml",
        command=["harness"],
        expansion=made,
        allocations=plan_allocations(made, LAB, LAUNCH),
    )


def test_a_plan_becomes_a_job_file_per_array_and_an_order_per_allocation(tmp_path: Path) -> None:
    run, made = RunDir(tmp_path / "r"), plan()
    files = write_submissions(run, made, LAB, TEMPLATE, LAUNCH)
    assert [file.name for file in files] == ["1n1r.sbatch", "2n1r.sbatch"]
    assert "#SBATCH --array=0-1%2" in files[1].read_text()
    assert sys.executable in files[0].read_text()
    orders = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "r" / "submissions").glob("*.json")}
    assert sorted(orders) == [allocation.name for allocation in made.allocations]
    second = made.allocations[1]
    assert orders["2n1r-0"] == {
        "cells": [{"cell": cell, "attempt": 1} for cell in second.cells],
        "parallel_ranks": 1,
        "nodes": 2,
        "ranks_per_node": 1,
    }
    assert from_jsonable(ClusterProfile, loads((tmp_path / "r" / "cluster.json").read_text())) == LAB


def test_nothing_is_written_when_a_job_file_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_submissions(RunDir(tmp_path / "r"), plan(), replace(LAB, setup=("a\nb",)), TEMPLATE, LAUNCH)
    assert list(tmp_path.iterdir()) == []


def test_a_container_runs_its_own_python(tmp_path: Path) -> None:
    profile = replace(LAB, container=Container(image="x"))
    (first, _) = write_submissions(RunDir(tmp_path / "r"), plan(), profile, TEMPLATE, LAUNCH)
    assert " python3 -m harness.runtime.agent" in first.read_text()
    named = replace(profile, python="/p")
    (first, _) = write_submissions(RunDir(tmp_path / "r"), plan(), named, TEMPLATE, LAUNCH)
    assert " /p -m harness.runtime.agent" in first.read_text()


def test_cells_run_side_by_side_only_on_the_cores_of_one_node() -> None:
    one, two = (Allocation(name="a", cells=(), nodes=nodes, ranks_per_node=2) for nodes in (1, 2))
    gpus = replace(LAB, gpus_per_node=8)
    assert [parallel_ranks(a, p, Launch()) for a, p in ((one, LAB), (two, LAB), (one, gpus))] == [8, 2, 2]
    assert [parallel_ranks(one, LAB, Launch(parallel_ranks=ranks)) for ranks in (1, 4)] == [2, 4]


def test_cells_share_a_node_that_a_job_has_with_all_its_gpus() -> None:
    small, whole = (Allocation(name="a", cells=(), nodes=1, ranks_per_node=ranks) for ranks in (1, 8))
    node = replace(LAB, gpus_per_node=8, exclusive=True)
    assert [parallel_ranks(one, node, Launch()) for one in (small, whole)] == [8, 8]
    assert [parallel_ranks(small, node, Launch(parallel_ranks=ranks)) for ranks in (1, 4, 64)] == [1, 4, 8]
    assert parallel_ranks(replace(small, nodes=2), node, Launch()) == 1


def in_stack(stack: ReadyStack) -> RunPlan:
    """The plan with all of its cells in a stack."""
    made = plan()
    return replace(
        made,
        stacks={"s": stack},
        allocations=tuple(replace(item, stack="s", array=f"{item.array}-s") for item in made.allocations),
    )


def test_a_job_in_a_stack_runs_its_interpreter_with_its_path_and_variables(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r")
    requested = Stack(name="s", packages=("six",), env={"A": "b c"})
    stack = ReadyStack(requested=requested, python="/env/bin/python", paths=("/trees/lm",))
    profile = replace(LAB, container=Container(image="image-of-the-cluster"))
    text = write_submissions(run, in_stack(stack), profile, TEMPLATE, LAUNCH)[0].read_text()
    payload = shlex.split(shlex.split(text[text.index("exec srun") :].replace("\\\n", " "))[-1])
    assert payload[:4] == ["cd", str(run.root), "&&", "exec"]
    assert payload[4:7] == ["env", "-u", "PYTHONHOME"]
    assert {"A=b c", f"PYTHONPATH=/trees/lm:{run.node_code}", "PYTHONNOUSERSITE=1"} <= set(payload)
    assert payload[payload.index("-m") - 1 :][:4] == ["/env/bin/python", "-m", "harness.runtime.agent", str(run.root)]
    assert "container" not in text
    assert (run.node_code / "harness" / "runtime" / "agent.py").exists()


def test_a_container_stack_runs_in_its_image_with_its_worktrees_mounted(tmp_path: Path) -> None:
    requested = Stack(name="s", container="nvcr/pytorch:25.10")
    homes = (ModuleHome(prefix="megatron.core", folders=("/trees/lm",)),)
    stack = ReadyStack(requested=requested, python="python3", paths=("/trees/lm",), homes=homes)
    profile = replace(LAB, container=Container(image="image-of-the-cluster", mounts=("/data:/data",)))
    run = RunDir(tmp_path / "r")
    text = write_submissions(run, in_stack(stack), profile, TEMPLATE, LAUNCH)[0].read_text()
    assert "--container-image=nvcr/pytorch:25.10" in text
    assert f"--container-mounts={run.root}:{run.root},/data:/data,/trees/lm:/trees/lm" in text
    assert "image-of-the-cluster" not in text
    assert "python3 -m harness.runtime.agent" in text
