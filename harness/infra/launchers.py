"""Chooses the launcher of a run."""

from __future__ import annotations

from harness.core.run.run_dir import RunDir
from harness.infra.launcher import Launcher
from harness.plan.jobs.cluster import ClusterProfile


def launcher_for(profile: ClusterProfile) -> Launcher:
    """The launcher of runs under a cluster profile."""
    return _launcher(slurm=profile.kind == "slurm")


def launcher_of(run: RunDir) -> Launcher:
    """The launcher of a run that was started earlier."""
    return _launcher(slurm=run.cluster.exists())


def _launcher(*, slurm: bool) -> Launcher:
    if slurm:
        from harness.infra.slurm.launcher import SlurmLauncher

        return SlurmLauncher()
    from harness.infra.local_launcher import LocalLauncher

    return LocalLauncher()
