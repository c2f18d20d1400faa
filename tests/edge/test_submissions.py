from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.edge.cluster_file import TEMPLATES
from harness.edge.run_dir import RunDir
from harness.edge.submissions import parallel_ranks, write_submissions
from harness.plan.allocations import plan_allocations
from harness.plan.cluster import ClusterProfile, Container
from harness.plan.matrix import Launch
from harness.words.errors import InputError
from harness.words.jsonable import from_jsonable, loads
from harness.words.run_plan import Allocation, RunPlan
from tests.plan.helpers import expand_axes

LAB = ClusterProfile(name="lab", kind="slurm", nodes=4, ranks_per_node=8)
TEMPLATE = TEMPLATES / "default.sbatch.j2"
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
    assert "exec python3 -m harness.node.agent" in first.read_text()
    named = replace(profile, python="/p")
    (first, _) = write_submissions(RunDir(tmp_path / "r"), plan(), named, TEMPLATE, LAUNCH)
    assert "exec /p -m harness.node.agent" in first.read_text()


def test_cells_run_side_by_side_only_on_the_cores_of_one_node() -> None:
    one, two = (Allocation(name="a", cells=(), nodes=nodes, ranks_per_node=2) for nodes in (1, 2))
    gpus = replace(LAB, gpus_per_node=8)
    assert [parallel_ranks(a, p, Launch()) for a, p in ((one, LAB), (two, LAB), (one, gpus))] == [8, 2, 2]
    assert [parallel_ranks(one, LAB, Launch(parallel_ranks=ranks)) for ranks in (1, 4)] == [2, 4]
