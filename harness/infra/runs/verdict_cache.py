"""Verdicts on cells of points that a bisection judged, kept: a file each, whole or not there.

A verdict is kept by all that it depends on, in the clear in its file. One that could not be decided is not kept.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import harness
from harness.core.run.run_dir import write_json
from harness.core.serialization import dumps, from_jsonable, loads
from harness.infra.stacks.artifact_store import folder
from harness.judge.bisect.result import JudgedCell

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class VerdictKey:
    """What a verdict depends on."""

    code: str  # hash of the tree under test, submodules included, or the requirement of the release
    stack: str  # everything else of the stack
    cell: str  # the cell in any stack, and what it is judged by
    where: str  # cluster profile or kind of machine: another device computes other numbers
    harness: str  # as harness_version() says

    @property
    def digest(self) -> str:
        return hashlib.sha256(dumps((FORMAT, self)).encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class KeptVerdict:
    key: VerdictKey
    cell: JudgedCell
    run: str  # the run directory that shows it


def read(key: VerdictKey) -> KeptVerdict | None:
    """None when there is none, or its file is not one."""
    try:
        kept = from_jsonable(KeptVerdict, loads(_file(key).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return kept if kept.key == key else None


def keep(verdict: KeptVerdict) -> None:
    write_json(_file(verdict.key), verdict)


def _file(key: VerdictKey) -> Path:
    return folder() / "verdicts" / f"{key.digest}.json"


@cache
def harness_version() -> str:
    """The version and a digest of its code: a changed check must not be answered with an old verdict."""
    return f"{harness.__version__}-{code_digest(Path(harness.__file__).parent)}"


def code_digest(root: Path) -> str:
    """Twelve hex digits of the Python files under `root`, their names and their text."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
