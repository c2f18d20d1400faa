"""`harness cancel` ends a run: while it submits, after its launcher was killed, and without ending other jobs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.events import append_line
from tests.processes import HUNG_S
from tests.slurm.cluster import SMALL, Cluster
from tests.slurm.lab import SlurmLab

pytestmark = pytest.mark.slurm
RUN = ("run", "one.yaml", "--cluster", "slurm-lab")
# Counts the calls of sbatch; the second one waits at a gate, before or after Slurm has the job.
COUNTED = """\
echo x >> "$here/calls"
gate() { touch "$here/reached"; while [ ! -e "$here/open" ]; do sleep 0.05; done; }
[ "$(wc -l < "$here/calls")" = 2 ] && second=yes
"""


@pytest.fixture
def cluster(lab: SlurmLab, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose jobs stay in the queue: the partition is down."""
    lab.output("scontrol", "update", "partitionname=main", "state=down")
    yield Cluster(lab, tmp_path, SMALL)
    lab.output("scontrol", "update", "partitionname=main", "state=up")


def calls(cluster: Cluster) -> int:
    return len((cluster.shims / "calls").read_text().splitlines())


def at_the_gate(cluster: Cluster) -> None:
    cluster.lab.wait_for((cluster.shims / "reached").exists, 120, "the second submission")


def nothing_left(cluster: Cluster) -> None:
    cluster.lab.wait_for(lambda: cluster.lab.output("squeue", "-h") == "", 30, "no job left")


def test_a_run_that_is_cancelled_while_it_submits_leaves_no_job(cluster: Cluster) -> None:
    cluster.shim("sbatch", COUNTED + '[ "$second" ] && gate\nreal "$@"')
    launcher = cluster.start(*RUN)
    at_the_gate(cluster)
    code, said = cluster.run("cancel", "latest")
    assert (code, "1 ended, 0 had ended before" in said) == (0, True), said
    (cluster.shims / "open").touch()  # lets the second submission continue
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 3, output
    nothing_left(cluster)
    assert calls(cluster) == 2, "of three submissions the last one was not made"
    reasons = [cell.reason for cell in cluster.report().cells]
    assert {cell.outcome for cell in cluster.report().cells} == {Outcome.ERROR}
    assert sum("the run was cancelled before this job was submitted" in reason for reason in reasons) == 1, reasons
    assert sum("was cancelled by uid 0" in reason for reason in reasons) == 2, reasons


def test_a_job_that_its_killed_launcher_had_not_recorded_is_ended(cluster: Cluster) -> None:
    cluster.shim("sbatch", COUNTED + 'real "$@"\nif [ "$second" ]; then gate; fi')
    launcher = cluster.start(*RUN)
    at_the_gate(cluster)
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    (cluster.shims / "open").touch()
    known = len(cluster.jobs())
    assert len(cluster.lab.output("squeue", "-h", "-o", "%F").split()) == known + 1
    code, said = cluster.run("cancel", "latest")
    assert (code, f"{known + 1} ended, 0 had ended before" in said) == (0, True), said
    nothing_left(cluster)
    code, said = cluster.run("cancel", "latest")
    assert (code, f"0 ended, {known + 1} had ended before" in said) == (0, True), said


def test_another_job_that_got_the_same_number_is_left_alone(cluster: Cluster) -> None:
    assert cluster.run(*RUN, "--dry-run")[0] == 0
    other = cluster.lab.output("sbatch", "--parsable", "--job-name=other", "--output=/dev/null", "--wrap=true")
    name = cluster.allocation("tp2-pp2-cp1-sft")
    made = {"time": 0.0, "event": "submitted", "job": name, "allocations": {name: other}}
    append_line(cluster.directory / "events.jsonl", made)
    code, said = cluster.run("cancel", "latest")
    assert (code, "0 ended, 1 had ended before" in said) == (0, True), said
    assert cluster.lab.output("squeue", "-h", "-o", "%F %T") == f"{other} PENDING"


def test_why_jobs_wait_is_shown_by_the_launcher_and_by_status(cluster: Cluster) -> None:
    launcher = cluster.start(*RUN)
    cluster.until_submitted(3)
    assert launcher.stdout is not None
    # At the first query Slurm may not have scheduled the jobs yet.
    line = next(line for line in launcher.stdout if "PartitionDown" in line)
    assert line.startswith("3 jobs wait in the queue: PartitionDown (3)")
    assert "PartitionDown (3)" in cluster.run("status", "latest")[1]
    assert cluster.run("cancel", "latest")[0] == 0
    output, _ = launcher.communicate(timeout=HUNG_S)
    assert launcher.returncode == 3, output
