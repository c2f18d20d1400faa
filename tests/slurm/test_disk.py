"""The disk fills up during a run on a real cluster: complete files stay complete, and the run can be finished."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.events import read_lines
from tests.processes import HUNG_S
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train, pytest.mark.long]
MATRIX = """\
name: disk
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  layout: [{tp: 2, pp: 1, cp: 1}]
  packing: [reference, sft, unpacked]
launch: {parallel_ranks: 2, deadline_s: 600}
"""
CONTROL = "tp1-pp1-cp1-unpacked"  # in a separate job; one job runs the other cells one after the other
ENDED, HANGS, LAST = "tp2-pp1-cp1-reference", "tp2-pp1-cp1-sft", "tp2-pp1-cp1-unpacked"
FOR_EVER = {"fault": "rank-enters-a-collective-alone", "deadline_s": 3600.0}


@pytest.fixture
def cluster(lab: SlurmLab, small_disk: Path) -> Iterator[Cluster]:
    (small_disk / "run").mkdir()
    yield Cluster(lab, small_disk / "run", MATRIX)


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with path.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1):
            with pytest.raises(OSError, match="No space left on device"):
                while True:
                    stream.write(bytes(size))


def finished(cluster: Cluster) -> dict[Path, bytes]:
    """Path -> content of the files that are written once: plan, work orders, job files, results and their records."""
    root = cluster.directory
    files = [root / "plan.json", *root.glob("submissions/*.json"), *root.glob("submissions/*.sbatch")]
    for result in root.glob("cells/*/attempt-*/result.json"):
        files += [result, *result.parent.glob("ranks/*.json")]
    return {path: path.read_bytes() for path in files}


def assert_whole(root: Path) -> None:
    """Assert that every file of the run directory is complete."""
    assert list(root.rglob("*.tmp")) == []
    for path in root.rglob("*.json"):
        json.loads(path.read_text())
    for journal in root.rglob("*.jsonl"):
        text = journal.read_text()
        assert text.endswith("\n")
        assert all(isinstance(json.loads(line), dict) for line in text.splitlines())


def test_a_run_stopped_by_a_full_disk_is_finished_by_resume_once_there_is_room(cluster: Cluster) -> None:
    lab = cluster.lab
    cluster.prepare({HANGS: FOR_EVER}, "--cluster", "slurm-lab", planned=False)
    launcher = cluster.start("resume", "latest")
    cluster.until_training(HANGS, 1)
    lab.wait_for(lambda: (cluster.attempt(CONTROL) / "result.json").exists(), 240, "the control's result")
    before = finished(cluster)
    fill(cluster.folder / "filler")
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 3, output
    assert f"harness: cannot write {cluster.directory}/" in output
    assert "No space left on device; free some space on its disk" in output
    assert "Traceback" not in output
    lab.wait_for(lambda: lab.output("squeue", "-h") == "", 240, "the agent's end")
    job = cluster.jobs()[cluster.allocation(HANGS)]
    cluster.until_accounted(job, "FAILED|28:0")
    assert not (cluster.directory / "report.json").exists()
    assert_whole(cluster.directory)
    assert finished(cluster) == before

    (cluster.folder / "filler").unlink()
    cluster.as_planned(HANGS)  # without the fault, which made it hang until the disk was full
    code, output = cluster.run("resume", "latest")
    assert code == 0, output
    outcomes = {name: cell.outcome for name, cell in cluster.cells().items()}
    assert outcomes == {
        CONTROL: Outcome.PASS, ENDED: Outcome.PASS, HANGS: Outcome.FLAKY, LAST: Outcome.FLAKY,
    }  # fmt: skip
    assert before.items() <= finished(cluster).items()
    assert "the run directory's disk was full" in cluster.result(HANGS).reason
    (again,) = [event for event in read_lines(cluster.directory / "events.jsonl") if event["event"] == "retry"]
    assert again["why"].endswith("the run directory's disk was full")
