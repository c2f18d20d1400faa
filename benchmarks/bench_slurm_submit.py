"""Submission of 200 one-node cells, and how often Slurm is queried about them. Run by bench_slurm.py.

Jobs are held in the queue, so that nothing else runs on this machine during submission.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure
from slurm_figures import ON_LAB, events, held_jobs, new_run, ranks_of_cells

from harness.launch.slurm.client import SlurmClient
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

CELLS = 200  # besides their control
MANY = """\
name: many
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 1, global_batch: 8, seq_length: 256}
matrix:
  layout:
    - {tp: 1, pp: 1, cp: 2}
    - {tp: 1, pp: 2, cp: 1}
    - {tp: 1, pp: 2, cp: 2}
    - {tp: 1, pp: 4, cp: 1}
    - {tp: 1, pp: 4, cp: 2}
    - {tp: 2, pp: 1, cp: 1}
    - {tp: 2, pp: 1, cp: 2}
    - {tp: 2, pp: 2, cp: 1}
    - {tp: 2, pp: 2, cp: 2}
    - {tp: 2, pp: 4, cp: 1}
  packing: [reference, sft]
  micro_batch_size: [1, 2]
  pad_seq_to_mult: [4, 8, 16, 32, 64]
"""
FORMS = {  # name -> launch section
    "cells_per_allocation: auto": "",
    "cells_per_allocation: 10": "launch: {cells_per_allocation: 10}\n",
    "cells_per_allocation: 1": "launch: {cells_per_allocation: 1}\n",
}
SUBMIT_S = 5.0
CALLS_PER_POLL = 1.0
POLLS = 5
FOLLOW_S = 15.0
# Found before the real client on PATH; logs each call.
WRAPPER = """#!/bin/sh
echo "$0" >> "{log}"
exec "{real}" "$@"
"""


def measure(lab: SlurmLab, runs: int) -> list[Figure]:
    with held_jobs(lab):
        figures = [figure for form in FORMS for figure in _submission(lab, form, runs)]
        return figures + _queries(lab)


def _submission(lab: SlurmLab, form: str, runs: int) -> list[Figure]:
    """Time of the submission stage, from the finished plan to the last job id, and of the whole command."""
    stages, walls, jobs = [], [], 0
    for _ in range(runs):
        with new_run(lab, MANY + FORMS[form]) as cluster:
            walls.append(_detach(cluster))
            planned = (cluster.directory / "plan.json").stat().st_mtime
            submitted = [event["time"] for event in events(cluster) if event["event"] == "submitted"]
            stages.append(max(submitted) - planned)
            jobs = len(cluster.jobs())
            assert len(ranks_of_cells(cluster)) == CELLS + 1
    what = f"{CELLS} cells submitted, {form}"
    return [
        Figure(name=what, values=stages, limit=SUBMIT_S, note=f"{jobs} jobs"),
        Figure(name="  the whole `harness run --detach`", values=walls),
    ]


def _detach(cluster: Cluster) -> float:
    begin = time.perf_counter()
    code, output = cluster.run("run", *ON_LAB, "--detach")
    if code != 0:
        raise SystemExit(f"harness run --detach ended with {code}:\n{output}")
    return time.perf_counter() - begin


def _queries(lab: SlurmLab) -> list[Figure]:
    """Real sacct calls per poll, and while a launcher follows for some seconds: for one job, then for 201."""
    per_poll, followed = [], []
    with _counted_calls() as log:
        for cells, form in ((("--only", "tp1-pp1-cp1-unpacked"), ""), ((), "cells_per_allocation: 1")):
            with new_run(lab, MANY + FORMS.get(form, "")) as cluster:
                cluster.run("run", *ON_LAB, "--detach", *cells)
                jobs = list(cluster.jobs().values())
                log.write_text("")
                client = SlurmClient()
                for _ in range(POLLS):
                    client.states(jobs)
                calls = log.read_text().splitlines()
                sacct = sum(line.endswith("sacct") for line in calls)
                name = f"sacct calls per poll, jobs: {len(jobs)}"
                note = f"{(len(calls) - sacct) / POLLS:g} squeue calls per poll as well"
                per_poll.append(Figure(name=name, values=[sacct / POLLS], unit="", limit=CALLS_PER_POLL, note=note))
                followed.append(_followed(cluster, log, len(jobs)))
    return per_poll + followed


def _followed(cluster: Cluster, log: Path, jobs: int) -> Figure:
    log.write_text("")
    launcher = cluster.start("resume", "latest")
    time.sleep(FOLLOW_S)
    launcher.kill()
    launcher.communicate()
    sacct = sum(line.endswith("sacct") for line in log.read_text().splitlines())
    return Figure(name=f"  sacct calls in {FOLLOW_S:g} s of `harness resume`, jobs: {jobs}", values=[sacct], unit="")


@contextlib.contextmanager
def _counted_calls() -> Iterator[Path]:
    """Count the calls of sacct and squeue by this process and its children; yields a file with a line per call."""
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        for name in ("sacct", "squeue"):
            wrapper = Path(folder) / name
            wrapper.write_text(WRAPPER.format(log=log, real=shutil.which(name)))
            wrapper.chmod(0o755)
        os.environ["PATH"] = f"{folder}:{path}"
        try:
            yield log
        finally:
            os.environ["PATH"] = path
