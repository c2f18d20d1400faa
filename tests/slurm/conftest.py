"""The Slurm cluster of these tests: one per session, started by the first test that requests it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.processes import await_end
from tests.slurm.lab import SlurmLab
from tests.slurm.machine import is_free, missing, processes_of


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; under CI a cluster that cannot run is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"no Slurm lab, and CI must not skip its tests: {reason}")
    pytest.skip(f"no Slurm lab: {reason}")


@pytest.fixture(scope="session")
def may_run_slurm() -> None:
    """Skip, or fail under CI, where a cluster cannot run."""
    reason = missing()
    if reason:
        unavailable(reason)


@pytest.fixture(scope="session")
def small_disk(may_run_slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 32 MiB, mounted before the cluster starts so that its nodes see it."""
    folder = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=700", "small", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="session")
def slurm_lab(small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """Four nodes n1..n4 with accounting. The teardown checks that no process and no listening port is left."""
    lab = SlurmLab(tmp_path_factory.mktemp("slurm"))
    lab.start()
    try:
        yield lab
    finally:
        lab.stop()
        shutil.rmtree(lab.folder / "mysql")  # 90 MiB, and pytest keeps the folders of three sessions
    for pid in processes_of(lab.folder):  # clients and ranks that are still exiting
        await_end(pid)
    assert processes_of(lab.folder) == {}
    assert [port for port in lab.ports if not is_free(port)] == []


@pytest.fixture
def lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """The session's cluster; after the test its jobs are cancelled and gone."""
    yield slurm_lab
    slurm_lab.output("scancel", "--user=root")
    slurm_lab.wait_for(lambda: slurm_lab.output("squeue", "-h") == "", 30, "no job left after the test")
