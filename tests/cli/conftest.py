"""The command line as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MATRIX = """\
name: small
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64, tied: true}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  tp: [1, 2]
  pp: [1, 2]
  packing: [reference, sft]
constraints: ["tp == pp"]
"""


def harness(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run the command line in `cwd` with `env` added to this process's environment; captures output, does not raise."""
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    whole = {**os.environ, **(env or {})}
    return subprocess.run(command, cwd=cwd, env=whole, capture_output=True, text=True, timeout=timeout)


def write_matrix(folder: Path, text: str = MATRIX, name: str = "small.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def only_run(parent: Path) -> Path:
    """The single run directory below a folder."""
    runs: Sequence[Path] = [path.parent for path in parent.glob("*/plan.json")]
    assert len(runs) == 1, runs
    return runs[0]
