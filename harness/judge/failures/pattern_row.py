"""A failure class: one row of the table in patterns.py."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.outcomes import StrEnum


class Domain(StrEnum):
    """The part of the system at fault."""

    CODE = "code"
    HARNESS = "harness"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class Role(StrEnum):
    """Whether a failure can start by itself, or only follows from another."""

    ROOT = "root"
    CASCADE = "cascade"


class Retry(StrEnum):
    """Whether running the cell again can help. Advice: harness/infra/slurm/follow.py decides what is retried."""

    NEVER = "never"
    OTHER_NODES = "other nodes"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One failure class. All regular expressions are searched; an empty one never matches."""

    name: str
    title: str
    domain: Domain
    role: Role
    retry_advice: Retry
    advice: str  # what to do next, in one sentence
    exception: str = ""  # in "Type: message" of an exception that a rank recorded
    log: str = ""  # in one line of log text, without the prefixes of torch, srun and slurmstepd
    states: tuple[str, ...] = ()  # of the job, as sacct and squeue name them

    def in_exception(self, text: str) -> bool:
        return bool(self.exception) and re.search(self.exception, text, re.I) is not None

    def in_log(self, line: str) -> bool:
        return bool(self.log) and re.search(self.log, line, re.I) is not None

    def in_state(self, state: str) -> bool:
        """`state` may carry a comment ("CANCELLED by 0") or be cut by sacct's column ("OUT_OF_ME+")."""
        word = (state.split() or [""])[0]
        if word.endswith("+"):
            return len(word) > 4 and any(name.startswith(word[:-1]) for name in self.states)
        return word in self.states
