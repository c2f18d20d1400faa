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

from harness.core.errors import InfrastructureError
from harness.core.run.run_dir import needs_room
from harness.infra.slurm.client import ControllerAwayError

# What sbatch says when it could not reach the controller, or did not hear whether the controller took the job.
_AWAY = re.compile(
    "[Uu]nable to contact slurm controller|Socket timed out|Connection refused|Connection timed out"
    "|Slurm backup controller|Zero Bytes were transmitted|Communication (?:connection|shutdown) failure"
    "|Message (?:send|receive) failure|Transport endpoint is not connected|Broken pipe|temporarily unable to accept"
)


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
    except FailedSubmissionError as error:  # it succeeded and named no job
        raise ControllerAwayError(f"sbatch did not say which job it made: {error}") from error
    except FailedJobError as error:
        code = getattr(error.__cause__, "returncode", 1)
        # A signal ended it (below 0), or it says no word of a refusal: Slurm may have the job.
        unclear = code < 0 or not str(error).strip() or _AWAY.search(str(error)) is not None
        said = str(error) or f"exit code {code}"
        if unclear:
            raise ControllerAwayError(f"sbatch did not hear whether Slurm took the job: {said}") from error
        raise InfrastructureError(f"sbatch refused the job file: {said}") from error
