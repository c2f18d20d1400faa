"""Runs benchmarks at their smallest size, as tests do; how long they take is not asserted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
ON_A_CLUSTER = ("slurm", "soak_slurm")  # run by tests/slurm/test_benchmarks.py


def assert_measures(name: str) -> None:
    """Run one benchmark of all.py in a folder of its own: it writes figures, not all of them zero."""
    # Chromium makes a socket under TMPDIR, whose path has at most 107 characters: pytest's folders are too long.
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.md")
        command = [sys.executable, str(FOLDER / "all.py"), "--smallest", "--only", name, "--page", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "TMPDIR": folder})
        assert done.returncode == 0, done.stdout + done.stderr
        text = page.read_text(encoding="utf-8")
    section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows
    assert all(re.match(r"[0-9.e+-]+( \w+)?$", row[1]) for row in rows)
    assert any(float(row[1].split()[0]) > 0 for row in rows)
    assert f"{name:<10} ok" in done.stdout
