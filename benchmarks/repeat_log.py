"""A log of repeated runs of the same code, one line of JSON per repeat, so that a later call can continue it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def code_version() -> str:
    """The tree of harness/ at HEAD, which is the same for commits that differ only elsewhere."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD:harness"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def continued(log: Path, matrix: str, repeats: int, one_repeat: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the repeats that `log` lacks for this code and matrix, adding a row after each; returns all of their rows.

    Every row has the load of the machine at its start.
    """
    key = {"code_version": code_version(), "matrix": matrix}
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    rows = [row for row in map(json.loads, lines) if {name: row[name] for name in key} == key]
    while len(rows) < repeats:
        load = round(os.getloadavg()[0], 1)
        rows.append({**key, "load": load, **one_repeat()})
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    return rows
