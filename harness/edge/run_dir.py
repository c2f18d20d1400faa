"""The run directory: names, atomic writes, reads. Node and launcher both use it; only the standard library.

reports/<run_id>/
  matrix.resolved.yaml  plan.json  events.jsonl
  submissions/<allocation>.{json,sbatch,log}
  agents/<allocation>.<node>.jsonl
  cells/<cell_id>/attempt-<n>/{config.json, ranks/rank-00007.json, log/rank-00007.log, result.json}
  report.json  junit.xml  report.md  report.html
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.words.errors import InputError
from harness.words.jsonable import dumps

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def safe_name(name: str) -> str:
    """The name itself if it can be one path component that stays inside the run directory; InputError otherwise."""
    if not _SAFE.fullmatch(name) or len(name) > 200:
        raise InputError(f"{name!r} cannot name a file: letters, digits, '.', '_', '-' only")
    return name


def write_atomic(path: Path, text: str) -> None:
    """Write by temporary name and rename, so that a reader sees the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    write_atomic(path, dumps(value, indent=indent) + "\n")


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line with a single write call, so that lines of one writer are whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(dumps(value) + "\n")


@dataclass(frozen=True)
class AttemptDir:
    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    def record(self, rank: int) -> Path:
        return self.root / "ranks" / f"rank-{rank:05d}.json"

    def log(self, rank: int) -> Path:
        return self.root / "log" / f"rank-{rank:05d}.log"


@dataclass(frozen=True)
class RunDir:
    root: Path

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def matrix(self) -> Path:
        return self.root / "matrix.resolved.yaml"

    def submission(self, allocation: str, suffix: str = ".json") -> Path:
        return self.root / "submissions" / f"{safe_name(allocation)}{suffix}"

    def agent_journal(self, allocation: str, node: int) -> Path:
        return self.root / "agents" / f"{safe_name(allocation)}.{node}.jsonl"

    def attempt(self, cell: str, attempt: int = 1) -> AttemptDir:
        return AttemptDir(self.root / "cells" / safe_name(cell) / f"attempt-{attempt}")

    def report(self, name: str) -> Path:
        """One of report.json, junit.xml, report.md, report.html."""
        return self.root / name
