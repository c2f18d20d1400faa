"""The job files of a run on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.run.run_dir import RunDir

if TYPE_CHECKING:
    from harness.app.pipeline import plan_run


def write_job_files(planned: plan_run.Planned, directory: RunDir) -> list[Path]:
    """Everything that a run on a cluster needs, its job files included; their paths."""
    from harness.app.pipeline import plan_run
    from harness.infra.inputs.cluster_file import template_of
    from harness.infra.slurm.submissions import write_submissions

    template = template_of(planned.cluster, planned.cluster_file)
    files = write_submissions(directory, planned.plan, planned.cluster, template, planned.matrix.launch)
    plan_run.write_plan(directory, planned.plan, planned.matrix)
    return files
