"""The test cluster itself: it must behave like Slurm, fail like real machines, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm import lab_files, machine
from tests.slurm.conftest import unavailable
from tests.slurm.lab import LabError, SlurmLab
from tests.slurm.lab_files import NODES
from tests.slurm.machine import is_free, missing, processes_of

pytestmark = pytest.mark.slurm

HOLDER = """
import sys, pathlib
from tests.slurm.lab import SlurmLab
SlurmLab(pathlib.Path(sys.argv[1]), accounting=False).start()
print("started", flush=True)
sys.stdin.read()
"""


def submit(lab: SlurmLab, command: str, *flags: str) -> str:
    return lab.output("sbatch", "--parsable", *flags, "--wrap", command)


def until(name: str) -> str:
    """A shell command that runs until the test makes a file."""
    return f"until [ -e {name} ]; do sleep 0.1; done"


def release(lab: SlurmLab, name: str) -> None:
    (lab.folder / "jobs" / name).touch()


def queue_state(lab: SlurmLab, job: str) -> str:
    """State of a job by squeue, also of a job that ended within the last minutes."""
    return lab.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", seconds=5).stdout.strip()


def accounted(lab: SlurmLab, job: str, *flags: str) -> list[str]:
    """States of a job, or of each task of an array, by sacct."""
    return lab.run("sacct", "-n", "-X", "-P", "-o", "State", "-j", job, *flags).stdout.split("\n")[:-1]


def test_four_nodes_are_idle_and_each_has_its_own_name(lab: SlurmLab) -> None:
    assert lab.node_states() == dict.fromkeys(NODES, "idle")
    assert sorted(lab.output("srun", "-N4", "hostname").split()) == list(NODES)
    resolved = lab.output("srun", "-N1", "getent", "hosts", *NODES).splitlines()
    assert [line.split() for line in resolved] == [[f"127.0.1.{i}", f"n{i}"] for i in (1, 2, 3, 4)]


def test_exit_codes_and_cancellation_reach_accounting(lab: SlurmLab) -> None:
    failed, cancelled = submit(lab, "exit 3"), submit(lab, until("never"))
    lab.wait_for(lambda: queue_state(lab, cancelled) == "RUNNING", 30, "the job to cancel runs")
    lab.output("scancel", cancelled)
    lab.wait_for(lambda: accounted(lab, failed) == ["FAILED"], 30, "FAILED in sacct")
    lab.wait_for(lambda: accounted(lab, cancelled) == ["CANCELLED by 0"], 30, "CANCELLED in sacct")
    assert lab.output("sacct", "-n", "-X", "-P", "-o", "ExitCode", "-j", failed) == "3:0"


def test_a_job_sees_the_devices_it_asked_for(lab: SlurmLab) -> None:
    assert lab.output("srun", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES") == "0,1"


def test_an_array_runs_no_more_tasks_at_once_than_its_throttle(lab: SlurmLab) -> None:
    job = submit(lab, until("array"), "--array=0-3%2")

    def tasks() -> list[str]:
        return sorted(lab.output("squeue", "-h", "-r", "-j", job, "-o", "%T %r").splitlines())

    waiting = ["PENDING JobArrayTaskLimit"] * 2
    lab.wait_for(lambda: tasks() == [*waiting, *["RUNNING None"] * 2], 30, "two tasks run and two wait")
    release(lab, "array")
    lab.wait_for(lambda: accounted(lab, job) == ["COMPLETED"] * 4, 30, "four tasks completed")


def test_without_accounting_jobs_run_and_stop_leaves_nothing(may_run_slurm: None, tmp_path: Path) -> None:
    lab = SlurmLab(tmp_path, accounting=False)
    try:
        lab.start()
        job = submit(lab, until("never"), "-N4")
        lab.wait_for(lambda: queue_state(lab, job) == "RUNNING", 30, "the job runs")
        assert "accounting storage is disabled" in lab.run("sacct").stderr
        assert [port for port in lab.ports if is_free(port)] == lab.ports[1:3]  # no slurmdbd, no mariadbd
        assert len(processes_of(tmp_path)) > 10
    finally:
        lab.stop()
    assert processes_of(tmp_path) == {}
    assert [port for port in lab.ports if not is_free(port)] == []


def test_a_start_that_fails_says_why_and_leaves_nothing(
    may_run_slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_files, "SLURM_CONF", lab_files.SLURM_CONF + "NoSuchKey=1\n")
    with pytest.raises(LabError, match=r"(?s)'slurmctld': 1.*waiting for: slurmctld answers.*NoSuchKey"):
        SlurmLab(tmp_path, accounting=False).start()
    assert processes_of(tmp_path) == {}


def test_a_test_run_that_is_killed_leaves_nothing(may_run_slurm: None, tmp_path: Path, root: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], cwd=root, **pipes) as holder:
        assert holder.stdout.readline() == b"started\n"
        assert len(processes_of(tmp_path)) > 10
        os.kill(holder.pid, signal.SIGKILL)
    SlurmLab(tmp_path).wait_for(lambda: not processes_of(tmp_path), 15, "all daemons died with it")


def test_waiting_in_vain_names_what_was_awaited_and_the_last_answer(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "slurmctld.log").write_text("one\ntwo\n")
    with pytest.raises(LabError, match=r"(?s)not within 0\.1 s: rain; last answer: \[\].*--- slurmctld\.log\none\ntwo"):
        SlurmLab(tmp_path).wait_for(list, 0.01, "rain")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SEARCH_PATH", "")
    assert missing().startswith("no munged, slurmctld, slurmd, munge, sbatch,")
    assert "scripts/setup --slurm" in missing()


def test_a_missing_cluster_skips_here_and_fails_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Slurm lab: no munged"):
        unavailable("no munged")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI must not skip its tests: no munged"):
        unavailable("no munged")
