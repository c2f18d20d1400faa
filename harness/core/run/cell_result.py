"""How an attempt of a cell and its ranks ended: result.json, written by the supervisor of node 0.

It seals the evidence: it holds a digest of every record and of itself, so that a reader sees any later change.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from harness.core.outcomes import Rejection
from harness.core.run.records import SCHEMA_VERSION
from harness.core.run.states import CellStatus, ProcessEnd
from harness.core.serialization import dumps

MOST_CONTENTION = 5.0  # a deadline is at most this many times longer on a busy machine


@dataclass(kw_only=True)
class RankEnding:
    """How a rank's process ended, as its parent saw it."""

    rank: int
    ended: ProcessEnd
    exit_code: int | None = None
    hang: str | None = None  # collective in the stack dump of a rank that hit the deadline
    stack: list[str] | None = None  # frames of that dump, innermost last; None: there is no dump
    flight: list[str] = field(default_factory=list)  # collectives that had not completed, from torch's flight recorder
    still_s: float | None = None  # seconds without progress before the deadline
    digest: str = ""  # SHA-256 of its record once its process had ended; empty: no record, or its node was lost


@dataclass(kw_only=True)
class CellResult:
    """Written once by the agent at the end of an attempt; if it exists, the attempt is over."""

    cell: str
    attempt: int
    status: CellStatus
    reason: str = ""
    rejection: Rejection | None = None
    first_failure_rank: int | None = None
    ranks: list[RankEnding] = field(default_factory=list)
    started: float = 0.0  # seconds since the epoch
    finished: float = 0.0
    steps_s: float = 0.0  # largest sum of step times over the ranks
    oracle: str = ""  # SHA-256 of oracle.json; empty: there is none
    deadline_s: float = 0.0  # that the ranks had: the cell's, longer on a busy machine; 0 if none was started
    seal: str = ""  # `digest_of_result` of everything else
    schema_version: int = SCHEMA_VERSION


def sealed(result: CellResult) -> CellResult:
    """The result with its seal, to be written."""
    return replace(result, seal=digest_of_result(result))


def digest_of_result(result: CellResult) -> str:
    """The SHA-256 of a result without its seal, in hexadecimal."""
    return hashlib.sha256(dumps(replace(result, seal="")).encode()).hexdigest()
