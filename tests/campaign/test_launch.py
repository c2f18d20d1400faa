from __future__ import annotations

from pathlib import Path

import pytest

from harness.campaign.launch import launcher_for, launcher_of
from harness.core.errors import InputError
from harness.core.run.run_dir import RunDir, write_json
from harness.launch.launcher import Cancelled
from harness.matrix.cluster import LOCAL, ClusterProfile
from tests.launch.slurm.test_submissions import plan

SLURM = ClusterProfile(name="test", kind="slurm")


def test_cells_of_a_cluster_are_jobs_and_those_of_this_machine_end_with_the_launcher(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert not launcher_for(LOCAL).detached
    assert not launcher_of(run).detached
    write_json(run.cluster, SLURM)
    assert launcher_for(SLURM).detached
    assert launcher_of(run).detached


def test_there_is_nothing_to_submit_or_to_cancel_on_this_machine(tmp_path: Path) -> None:
    launcher = launcher_for(LOCAL)
    with pytest.raises(InputError, match="no jobs on this machine"):
        launcher.submit(RunDir(tmp_path), plan(), print)
    with pytest.raises(InputError, match="ran on this machine, not on a cluster"):
        launcher.cancel(RunDir(tmp_path), plan())


def test_the_jobs_of_a_cancelled_run_are_summarised_in_one_line() -> None:
    assert Cancelled(ended=("1",), over=2).text == "1 ended, 2 had ended before"
    assert Cancelled(ended=("1",), over=0, left=("1",)).text.endswith("1 not ended by Slurm yet: 1")
