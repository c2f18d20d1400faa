"""The cache of a bisection's verdicts on cells: one file each, written atomically.

The key is everything that a verdict depends on; the file holds it as text. Undecided verdicts are not kept.
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
    """Everything that a verdict depends on."""

    code: str  # hash of the tree under test, submodules included, or the requirement of the release
    stack: str  # everything else of the stack
    cell: str  # the cell without its stack, and its judging options
    where: str  # cluster profile or kind of machine: results differ between devices
    harness: str  # harness_version()

    @property
    def digest(self) -> str:
        return hashlib.sha256(dumps((FORMAT, self)).encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class KeptVerdict:
    key: VerdictKey
    cell: JudgedCell
    run: str  # the run directory that it comes from


def read(key: VerdictKey) -> KeptVerdict | None:
    """The verdict; None when there is none, or its file is damaged."""
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
    """The version and a digest of the code, so that a changed check does not reuse an old verdict."""
    return f"{harness.__version__}-{code_digest(Path(harness.__file__).parent)}"


def code_digest(root: Path) -> str:
    """Twelve hex digits over names and text of the Python files under `root`."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
