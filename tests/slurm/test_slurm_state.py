"""States of jobs as the real Slurm reports them."""

from __future__ import annotations

import pytest

from harness.launch.slurm.client import SlurmClient
from tests.slurm.lab import SlurmLab

pytestmark = pytest.mark.slurm


def test_every_pending_member_of_a_scattered_array_is_known(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    indices = [number * number for number in range(40)]  # listed in more than the 64 characters of Slurm's default
    array = ",".join(map(str, indices))
    job = lab.output("sbatch", "--parsable", "--hold", f"--array={array}", "--output=/dev/null", "--wrap=true")
    members = [f"{job}_{index}" for index in indices]
    lab.wait_for(
        lambda: lab.output("sacct", "-n", "-X", "-P", "-o", "JobID", "-j", job), 30, "accounting knows the job"
    )
    assert {state.state for state in SlurmClient().states(members).values()} == {"PENDING"}
