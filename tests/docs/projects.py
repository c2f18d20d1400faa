"""A small copy of the project, with a matrix of two cells, in which docs/examples/nightly.sh can be run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
TINY = "name: nightly\nmodel: {layers: 1}\ntrain: {steps: 1}\nmatrix: {packing: reference}\nchecks: {canaries: none}\n"


def small_project(home: Path, root: Path) -> Path:
    """Make `home`/harness, and `home`/runs for its run directories; returns the path of nightly.sh in it."""
    project = home / "harness"
    (project / "matrices").mkdir(parents=True)
    (project / "matrices" / "nightly.yaml").write_text(TINY)
    (project / "matrices" / "clusters").symlink_to(root / "matrices" / "clusters")
    (project / "docs" / "examples").mkdir(parents=True)
    script = shutil.copy(root / "docs" / "examples" / "nightly.sh", project / "docs" / "examples")
    (project / ".venv").mkdir()
    (project / ".venv" / "bin").symlink_to(BIN)
    (home / "runs").mkdir()
    return Path(script)


def settings(home: Path, **more: str) -> dict[str, str]:
    """The environment variables of a night that runs as a Slurm job, as under scrontab."""
    return {**os.environ, "RUN_DIR": str(home / "runs"), "HOME": str(home), "SLURM_JOB_ID": "7", **more}
