"""When Slurm would start a job file, asked without submitting it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_START = re.compile(r" to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_PATIENCE_S = 10.0


def expected_start(job_file: Path) -> str | None:
    """Local time like 2027-01-31T12:00:00 from `sbatch --test-only`; None where Slurm is absent or cannot say."""
    command = ["sbatch", "--test-only", str(job_file)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _START.search(done.stderr)
    return found[1] if found and done.returncode == 0 else None
