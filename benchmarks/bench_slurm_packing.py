"""Time of twenty eight-rank cells to their verdict: many cells per job, or one job per cell. Run by bench_slurm.py.

One job per cell is measured in two ways:
- sbatch and torchrun, as usual, where each of the eight ranks imports torch and Megatron itself. One wave, a cell on
  each node, is measured and scaled up to twenty cells.
- `cells_per_allocation: 1`, the harness without the packing of cells into jobs: a job imports once and forks its ranks.
  It runs on all four nodes at once, in five waves of one import each, while the packed cells occupy one node. So with a
  core for every rank, cells that take no time would reach a ratio of a fifth; where the four nodes share a few cores,
  the processor time of the cells counts on both sides.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

from figures import ROOT, Figure
from slurm_figures import ON_LAB, new_run, ranks_of_cells, wait_until

from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

CELLS = 20  # of 8 ranks, besides their control
TWENTY = """\
name: twenty
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 1, global_batch: 8, seq_length: 64}
matrix:
  layout:
    - {tp: 1, pp: 4, cp: 2}
    - {tp: 2, pp: 2, cp: 2}
    - {tp: 2, pp: 4, cp: 1}
    - {tp: 2, pp: 1, cp: 4}
    - {tp: 1, pp: 2, cp: 4}
  packing: [reference, sft]
  micro_batch_size: [1, 2]
"""
ONE_PER_JOB = "launch: {cells_per_allocation: 1}\n"
WAVE = 4  # nodes of the cluster; a cell takes all ranks of a node
RATIO = 0.2
TORCHRUN_JOB = """#!/bin/bash
#SBATCH --partition=main --nodes=1 --ntasks-per-node=1 --cpus-per-task=8 --output={log}
export OMP_NUM_THREADS=1
exec {command}
"""


def measure(lab: SlurmLab, runs: int) -> list[Figure]:
    packed, single, usual = [], [], []
    for _ in range(runs):
        with new_run(lab, TWENTY) as cluster:
            packed.append(_run(lab, cluster))
            usual.append(_usual_jobs(lab, cluster) * CELLS / WAVE)
        with new_run(lab, TWENTY + ONE_PER_JOB) as cluster:
            single.append(_run(lab, cluster))
    walls, node_seconds = [wall for wall, _ in packed], [held for _, held in packed]
    pairs = list(zip(packed, single))
    return [
        Figure(name=f"{CELLS} cells to verdict", values=walls),
        Figure(name="  with cells_per_allocation: 1", values=[wall for wall, _ in single]),
        Figure(name="  as jobs of torchrun, without verdict", values=usual, note=f"scaled up from {WAVE} cells"),
        Figure(
            name="time against one job of torchrun per cell",
            values=[ours / theirs for ours, theirs in zip(walls, usual)],
            unit="",
            limit=RATIO,
        ),
        Figure(
            name="time against cells_per_allocation: 1",
            values=[ours[0] / theirs[0] for ours, theirs in pairs],
            unit="",
        ),
        Figure(name="node time that Slurm charges", values=node_seconds, unit="node-s"),
        Figure(
            name="  against cells_per_allocation: 1", values=[ours[1] / theirs[1] for ours, theirs in pairs], unit=""
        ),
    ]


def _run(lab: SlurmLab, cluster: Cluster) -> tuple[float, float]:
    """Wall seconds of a run up to its verdict, and the node-seconds of its jobs."""
    begin = time.perf_counter()
    code, output = cluster.run("run", *ON_LAB)
    wall = time.perf_counter() - begin
    if code != 0:
        raise SystemExit(f"harness run ended with {code}:\n{output}")
    assert sorted(ranks_of_cells(cluster).values()) == [1, *[8] * CELLS]
    jobs = ",".join(cluster.jobs().values())
    wait_until(lambda: lab.output("squeue", "-h") == "", 60, "all jobs have ended")
    rows = lab.output("sacct", "-n", "-X", "-P", "-o", "ElapsedRaw,NNodes", "-j", jobs).splitlines()
    return wall, sum(float(seconds) * int(nodes) for seconds, nodes in (row.split("|") for row in rows))


def _usual_jobs(lab: SlurmLab, cluster: Cluster) -> float:
    """Seconds until one torchrun job per node has repeated a cell of an earlier run."""
    configs = [path for path in sorted(cluster.directory.glob("cells/*/attempt-1/config.json")) if _is_wide(path)]
    chosen = configs[:: CELLS // WAVE][:WAVE]
    begin = time.perf_counter()
    for number, config in enumerate(chosen):
        folder = cluster.folder / f"torchrun-{number}"
        folder.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=8"]
        command += [str(ROOT / "benchmarks" / "torchrun_rank.py"), str(config), str(folder)]
        job = cluster.folder / f"torchrun-{number}.sbatch"
        job.write_text(TORCHRUN_JOB.format(log=folder / "log", command=shlex.join(command)))
        lab.output("sbatch", str(job))
    wait_until(lambda: lab.output("squeue", "-h") == "", 900, "the jobs of torchrun have ended")
    seconds = time.perf_counter() - begin
    for number in range(len(chosen)):
        _must_be_whole(cluster.folder / f"torchrun-{number}")
    return seconds


def _is_wide(config: Path) -> bool:
    layout = json.loads(config.read_text())["layout"]
    return bool(layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"] == 8)


def _must_be_whole(folder: Path) -> None:
    ended = [json.loads(path.read_text())["ended"] for path in folder.glob("rank-?????.json")]
    if ended != ["completed"] * 8:
        raise SystemExit(f"torchrun left {ended}:\n{(folder / 'log').read_text()[-3000:]}")
