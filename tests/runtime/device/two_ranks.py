"""Scripts that fork into two ranks over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def results(script: str, folder: Path, *arguments: str) -> list[Any]:
    """Run a script; returns the JSON that rank 0 and rank 1 write to `STORE-RANK`.

    The script's first argument is STORE, the file of the ranks' store.
    """
    store = folder / "store"
    command = [sys.executable, "-W", "ignore", "-c", script, str(store), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    files = [Path(f"{store}-{rank}") for rank in range(2)]
    assert all(file.exists() for file in files), done.stderr
    return [json.loads(file.read_text()) for file in files]
