"""Shared code of the benchmarks on the test cluster: runs of `harness` against a lab."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.core.run.events import read_lines  # noqa: E402
from tests.slurm.cluster import Cluster  # noqa: E402
from tests.slurm.lab import SlurmLab  # noqa: E402

ON_LAB = ("one.yaml", "--cluster", "slurm-lab")
Answer = TypeVar("Answer")


@contextlib.contextmanager
def started_lab() -> Iterator[SlurmLab]:
    """A cluster in a temporary folder; Slurm's clients, also of this process, find it by SLURM_CONF."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    lab = SlurmLab(folder)
    try:
        lab.start()
        os.environ |= {**lab.environment, "PYTHONPATH": str(ROOT)}  # jobs, too, run this checkout
        yield lab
    finally:
        lab.stop()
        shutil.rmtree(folder)


@contextlib.contextmanager
def new_run(lab: SlurmLab, matrix: str) -> Iterator[Cluster]:
    """`harness` on the lab with a matrix, in a new folder. At the end all jobs are cancelled."""
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        try:
            yield Cluster(lab, Path(folder), matrix)
        finally:
            lab.output("scancel", "--user=root")
            wait_until(lambda: lab.output("squeue", "-h") == "", 60, "no job is left")


@contextlib.contextmanager
def held_jobs(lab: SlurmLab) -> Iterator[None]:
    """Slurm accepts jobs but starts none: on a real cluster they would not run on the machine that submits them."""
    lab.output("scontrol", "update", "partitionname=main", "state=down")
    try:
        yield
    finally:
        lab.output("scontrol", "update", "partitionname=main", "state=up")


def wait_until(predicate: Callable[[], Answer | None], seconds: float, what: str) -> Answer:
    """Poll until the predicate is true and return its value. TimeoutError after `seconds`.

    Unlike SlurmLab.wait_for it accepts that a node was killed on purpose.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := predicate():
            return value
        time.sleep(0.02)
    raise TimeoutError(f"not within {seconds:g} s: {what}")


def events(cluster: Cluster) -> list[dict[str, Any]]:
    """The run's journal so far."""
    return read_lines(cluster.directory / "events.jsonl")


def ranks_of_cells(cluster: Cluster) -> dict[str, int]:
    """Number of ranks of every planned cell."""
    found = {}
    for path in cluster.directory.glob("cells/*/attempt-1/config.json"):
        layout = json.loads(path.read_text())["layout"]
        found[path.parent.parent.name] = layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"]
    return found
