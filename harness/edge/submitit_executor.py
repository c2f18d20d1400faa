"""Submits job files through submitit; its only importer.

submitit writes the file, calls sbatch and reads the job id; what stands in the file is the rendered template alone.
Nothing else of submitit is used: its pickles, its polling and its notion of success are not (a job's truth is the
records its agents leave). Depends on SlurmExecutor._submit_command, _make_submission_file_text and _num_tasks, the
same in 1.5.0 to 1.5.4; a test compares what sbatch received with what was rendered.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor

from harness.edge.run_dir import needs_room
from harness.words.errors import InfrastructureError

_AWAY = re.compile("Unable to contact slurm controller|Socket timed out|Connection refused|Slurm backup controller")


class ControllerAwayError(InfrastructureError):
    """sbatch could not reach Slurm's controller, or did not hear whether it took the job."""


class _JobFileExecutor(SlurmExecutor):  # type: ignore[misc]
    """Submits a finished text instead of submitit's own payload."""

    def __init__(self, folder: Path, text: str) -> None:
        super().__init__(folder)
        self._text = text

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._text

    def _num_tasks(self) -> int:
        return 1


def submit(text: str, folder: Path) -> str:
    """Submit a job file's text; returns the job id. submitit keeps its copy of the file below `folder`.

    InfrastructureError when there is no Slurm here or sbatch refuses, with what it said: ControllerAwayError when
    another try may do. DiskFullError.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise InfrastructureError("sbatch and srun are not on PATH: this machine is no Slurm login node")
    try:
        with needs_room(folder):
            folder.mkdir(parents=True, exist_ok=True)
            return str(_JobFileExecutor(folder, text)._submit_command("").job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        kind = ControllerAwayError if _AWAY.search(str(error)) else InfrastructureError
        raise kind(f"sbatch refused the job file: {error}") from error
