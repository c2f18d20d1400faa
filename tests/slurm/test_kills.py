"""The launcher is killed at random moments and resumed: nothing is lost, nothing is done twice."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.events import read_lines
from harness.launch.slurm.client import SlurmClient
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]
# Three shapes make three submissions, one of them an array of two jobs; each job runs one cell after the other.
MATRIX = """\
name: kills
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  tp: [1, 2]
  pp: [1, 2]
  packing: [unpacked, reference, sft]
launch: {parallel_ranks: 1, cells_per_allocation: 3, deadline_s: 600}
"""
CELLS, SUBMISSIONS, JOBS = 12, 3, 4
SUBMITTED = 2 * SUBMISSIONS  # events of the launcher: submission begun, submission made
EVENTS = SUBMITTED + 3 * JOBS + 2 * CELLS  # and of agents: started, loaded, finished; cell started, cell finished
SEED = 20261120


def moments(seed: int) -> list[int]:
    """Ten counts of events at which to kill: three between the submissions, seven while the jobs run."""
    draw = random.Random(seed)
    early, late = range(1, SUBMITTED), range(SUBMITTED, EVENTS)
    return sorted(draw.sample(early, 3) + draw.sample(late, 7))


def agents(cluster: Cluster) -> list[dict[str, Any]]:
    return [event for path in cluster.directory.glob("agents/*.jsonl") for event in read_lines(path)]


def event_count(cluster: Cluster) -> int:
    """Number of events of the run so far, of all launchers and agents."""
    if not cluster.begun():
        return 0
    ours = [event for event in read_lines(cluster.directory / "events.jsonl") if event["event"].startswith("submit")]
    return len(ours) + len(agents(cluster))


def until(cluster: Cluster, launcher: subprocess.Popen[str], wanted: int) -> None:
    """Wait for this many events, with short polls: three submissions take a tenth of a second."""
    end = time.monotonic() + 240
    while event_count(cluster) < wanted:
        assert launcher.poll() is None, launcher.communicate()[0]
        assert time.monotonic() < end, f"{event_count(cluster)} of {wanted} events"
        time.sleep(0.002)


def results(cluster: Cluster) -> dict[Path, bytes]:
    """Path -> content of every result and its records."""
    found = {}
    for path in cluster.directory.glob("cells/*/attempt-*/result.json"):
        found |= {file: file.read_bytes() for file in (path, *path.parent.glob("ranks/*.json"))}
    return found


def accounted(cluster: Cluster) -> list[str]:
    """JOB|STATE of every job that the run ever had."""
    rows = cluster.lab.output("sacct", "-n", "-X", "-P", "-o", "JobID,State,JobName").splitlines()
    return sorted(row.rpartition("|")[0] for row in rows if cluster.directory.name in row)


def test_a_launcher_killed_at_ten_random_moments_loses_nothing_and_does_nothing_twice(
    lab: SlurmLab, tmp_path: Path
) -> None:
    cluster = Cluster(lab, tmp_path, MATRIX)
    kept: dict[Path, bytes] = {}
    for number, moment in enumerate(moments(SEED)):
        again = ("resume", "latest")
        launcher = cluster.start(*(again if number else ("run", str(cluster.matrix), "--cluster", "slurm-lab")))
        wanted = min(max(moment, event_count(cluster) + 1), EVENTS)
        until(cluster, launcher, wanted)
        time.sleep(random.Random(f"{SEED}-{number}").uniform(0, 0.03))  # so that kills also fall between events
        launcher.send_signal(signal.SIGKILL)
        launcher.communicate()
        print(f"seed {SEED}: kill {number + 1} at {event_count(cluster)} of {EVENTS} events, {wanted} wanted")
        kept |= results(cluster)
    code, output = cluster.run("resume", "latest")
    assert code == 0, output

    report = cluster.report()
    assert report.counts[Outcome.PASS] == len({cell.id for cell in report.cells}) == len(report.cells) == CELLS
    begun = Counter(event["cell"] for event in agents(cluster) if event["event"] == "cell_started")
    assert begun == dict.fromkeys((cell.id for cell in report.cells), 1)
    events = read_lines(cluster.directory / "events.jsonl")
    ended = Counter(event["cell"] for event in events if event["event"] == "cell_finished")
    assert ended == begun
    assert kept.items() <= results(cluster).items()
    assert len(list(cluster.directory.glob("cells/*/attempt-*"))) == CELLS

    lab.wait_for(lambda: lab.output("squeue", "-h") == "", 60, "no job left")  # a job ends a moment after its agent
    all_completed = sorted(f"{job}|COMPLETED" for job in cluster.jobs().values())
    lab.wait_for(lambda: accounted(cluster) == all_completed, 60, f"sacct lists {all_completed}")
    assert len(all_completed) == JOBS


def test_an_array_that_runs_is_found_by_its_name_with_its_own_number(
    lab: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", lab.environment["SLURM_CONF"])
    number = lab.output("sbatch", "--parsable", "--array=0-1", "--job-name=found-by-name", "--wrap", "sleep 3600")
    lab.wait_for(lambda: lab.output("squeue", "-h", "-o", "%T").split() == ["RUNNING"] * 2, 60, "both members run")
    client = SlurmClient()
    assert {(job.number, job.state) for job in client.named(["found-by-name", "no-job"])} == {(number, "RUNNING")}
    assert client.named(["nobody's"]) == []
    lab.output("scancel", number)
    lab.wait_for(lambda: client.accounted("found-by-name"), 60, "accounting has heard of it")
    assert client.accounted("found-by-name") == number
    assert client.accounted("nobody's") is None
