"""What is refused before NeMo-Run writes a job file. Its job files and jobs: tests/slurm/test_nemo_run.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import InputError
from harness.core.run.run_dir import RunDir
from harness.infra.slurm.nemo_run import by_nemo_run, render_job
from harness.infra.slurm.sbatch_template import Job
from harness.plan.jobs.cluster import ClusterProfile
from tests.infra.slurm.test_sbatch_template import members

LAB = ClusterProfile(name="lab", kind="slurm", ranks_per_node=8, launcher="nemo-run")


@pytest.fixture(autouse=True)
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nemo_run", None)


def rendered(profile: ClusterProfile = LAB, run: str = "/shared/reports/run-1", **more: Any) -> str:
    values = {"run_id": "run-1", "command": ("harness",), "python": "/opt/python", "template": Path("unused"), **more}
    return render_job(Job(name="1n8r", allocations=members(1)), profile, run=RunDir(Path(run)), **values)


def test_without_the_package_the_message_names_the_extra() -> None:
    for call in (rendered, lambda: by_nemo_run(["sbatch", "x"])):
        with pytest.raises(InputError, match=r"launcher: nemo-run cannot be imported.*packing-harness\[nemo-run\]"):
            call()


@pytest.mark.parametrize(
    ("run", "changes", "message"),
    [
        ("/shared/it's/run-1", {}, "has a quote or a backslash"),
        ("/shared/run-1", {"sbatch_flags": ("--licenses=a\\b",)}, "--licenses.*has a quote or a backslash"),
        ("/shared/nemo_run/run-1", {}, "choose another --run-dir"),
        ("/shared/run-1", {"setup": ("source /shared/nemo_runs/setup",)}, "NeMo-Run replaces '/nemo_run'"),
        ("/shared/run-1", {"env": {"A": "/nemo_run"}}, "NeMo-Run replaces '/nemo_run'"),
    ],
)
def test_text_that_nemo_run_would_change_is_refused(run: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rendered(replace(LAB, **changes), run)
