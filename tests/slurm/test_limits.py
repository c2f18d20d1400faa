"""Jobs that Slurm ends before their cells have ended: at the time limit, or because a user cancelled one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.events import read_lines
from tests.processes import HUNG_S
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]
MATRIX = """\
name: limits
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  layout: [{tp: 2, pp: 1, cp: 1}]
  packing: [reference, sft, unpacked]
"""
ENDED, HANGS, LAST = "tp2-pp1-cp1-reference", "tp2-pp1-cp1-sft", "tp2-pp1-cp1-unpacked"
CONTROL = "tp1-pp1-cp1-unpacked"
FOR_EVER = {HANGS: {"fault": "rank-enters-a-collective-alone", "deadline_s": 3600.0}}


def never_retried(cluster: Cluster) -> bool:
    events = read_lines(cluster.directory / "events.jsonl")
    again = [event for event in events if event["event"] == "retry"] + list(cluster.directory.glob("cells/*/attempt-2"))
    return again == []


def test_at_the_time_limit_cells_that_ended_are_judged_and_the_others_are_errors(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, MATRIX + "launch: {parallel_ranks: 2, deadline_s: 600}\n")  # cell after cell
    cluster.prepare(FOR_EVER, "--cluster", "slurm-lab")
    assert cluster.allocation(ENDED) == cluster.allocation(HANGS) == cluster.allocation(LAST)
    launcher = cluster.start("resume", "latest")
    cluster.until_training(HANGS, 1)
    job = cluster.jobs()[cluster.allocation(HANGS)]
    lab.output("scontrol", "update", f"jobid={job}", "timelimit=1")
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 3, output
    cluster.until_accounted(job, "TIMEOUT|0:0")
    cells = cluster.cells()
    assert {name for name, cell in cells.items() if cell.outcome is Outcome.PASS} == {ENDED, CONTROL}
    for name in (HANGS, LAST):
        assert cells[name].outcome is Outcome.ERROR
        assert f"job {job} hit its time limit of 1 min" in cells[name].reason
    assert never_retried(cluster)


def test_a_job_of_an_array_cancelled_by_hand_costs_its_own_cell_only(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, MATRIX + "launch: {cells_per_allocation: 1, deadline_s: 600}\n")
    cluster.prepare(FOR_EVER, "--cluster", "slurm-lab")
    launcher = cluster.start("resume", "latest")
    cluster.until_training(HANGS, 1)
    job = cluster.jobs()[cluster.allocation(HANGS)]
    assert "_" in job
    lab.output("scancel", job)
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 3, output
    cells = cluster.cells()
    assert {name for name, cell in cells.items() if cell.outcome is Outcome.PASS} == {ENDED, LAST, CONTROL}
    assert cells[HANGS].outcome is Outcome.ERROR
    assert f"job {job} was cancelled by uid 0" in cells[HANGS].reason
    assert never_retried(cluster)
