"""Chooses the launcher of a run."""

from __future__ import annotations

from harness.core.run.run_dir import RunDir
from harness.infra.launcher import Launcher
from harness.plan.jobs.cluster import LOCAL, ClusterProfile


def launcher_for(profile: ClusterProfile) -> Launcher:
    """The launcher of runs under a cluster profile."""
    if profile.kind == "slurm":
        from harness.infra.slurm.launcher import SlurmLauncher

        return SlurmLauncher(profile)
    from harness.infra.local_launcher import LocalLauncher

    return LocalLauncher()


def launcher_of(run: RunDir) -> Launcher:
    """The launcher of a run that was started earlier."""
    if not run.cluster.exists():
        return launcher_for(LOCAL)
    from harness.infra.slurm.submit import profile_of

    return launcher_for(profile_of(run))
