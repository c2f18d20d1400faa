"""Lanes, findings and outcomes, and the exit code that follows from them."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal


class StrEnum(str, Enum):
    """Replaces `enum.StrEnum`, which Python 3.10 does not have; the node side runs on it too."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class Lane(StrEnum):
    """The groups of checks; each has its own verdict, so timing noise can neither hide nor fake a numeric result."""

    METADATA = "metadata"
    NUMERICS = "numerics"
    THROUGHPUT = "throughput"


class Severity(StrEnum):
    """Only `ERROR` fails a lane."""

    ERROR = "error"
    WARNING = "warning"


class LaneVerdict(StrEnum):
    PASS = "pass"
    PARTIAL = "partial"  # nothing is wrong, but some of the numbers were compared with nothing
    FAIL = "fail"
    SKIP = "skip"  # not judged: no evidence (it never ran, or the lane does not apply)


class Outcome(StrEnum):
    """The outcome of a cell."""

    PASS = "PASS"
    FAIL = "FAIL"  # the code under test is wrong
    XFAIL = "XFAIL"  # failed as the matrix says it would
    XPASS = "XPASS"  # passed although the matrix says it fails
    REJECTED = "REJECTED"  # a rule or the stack forbids it; never ran
    ERROR = "ERROR"  # infrastructure: inconclusive
    FLAKY = "FLAKY"  # passed only on a retry, after an attempt whose end does not blame the code
    NOT_RUN = "NOT_RUN"  # the run was stopped first, by --maxfail or a signal; `resume` runs it


class KnownFailure(StrEnum):
    """How a cell's result compares with its xfail entry."""

    NONE = ""  # no entry, or an undecided cell
    EXPECTED = "expected"  # failed as the entry says
    EXPIRED = "expired"  # failed after the entry's last day
    ELSEWHERE = "elsewhere"  # failed, but not as the entry says
    PASSES = "passes"


def place_text(where: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key.replace('_', '-')} {value}"
        for key, value in where.items()
        if value is not None and not isinstance(value, (list, tuple, dict)) and key != "places"
    )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found.

    `where` holds any of: rank, stage, tp, cp, dp, chunk, layer, step, micro_batch, document, token, parameter,
    field, leg, attempt (if not the newest), ratio (the factor a number is off by), boundaries (the boundaries at that
    place, see judge/diagnosis/localise.py). `measured` and `bound` are JSON values.
    """

    lane: Lane
    check: str
    message: str
    severity: Severity = Severity.ERROR
    fault_class: str | None = None  # the probable one
    follows_from: str = ""  # the check whose finding explains this one; empty: this one is a cause
    known: str = ""  # the matching upstream issue, with the release that fixes it
    where: dict[str, Any] = field(default_factory=dict)
    measured: Any = None
    bound: Any = None

    @property
    def place(self) -> str:
        """ "stage 1, tp 1, layer 3": the single values of `where`, without the lists that give a fault's extent."""
        return place_text(self.where)

    @property
    def unsaid(self) -> dict[str, Any]:
        """The part of `where` that the message does not say, for what shows both.

        Without chunk 0, the only one of a layout without virtual stages.
        """
        said = [word.strip(".-") for word in re.findall(r"[\w.-]+", self.message)]
        pairs = set(itertools.pairwise(said))

        def says(name: str, value: Any) -> bool:
            pair = name.replace("_", "-"), str(value)
            if name in ("places", "leg"):
                return pair[::-1] in pairs
            if isinstance(value, (list, tuple)):
                return all(isinstance(item, str) and item in self.message for item in value)
            return (name, value) == ("chunk", 0) or pair in pairs or (isinstance(value, str) and value in self.message)

        return {name: value for name, value in self.where.items() if not says(name, value)}


STACK_UNDER_TEST = "the stack under test"  # source of a Rejection that states what a release does not have


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Why a combination is not run: the rule and its arithmetic."""

    rule: str
    reason: str
    source: str = ""


# Rules that a node decides when the cell starts, and why they cannot be lifted; empty: they can. All other rules reject
# a cell in the plan.
NODE_RULES: Mapping[str, str] = {
    "stack.data_path": "the stack has nothing that the data path could call",
    "stack.model": "the stack takes no argument that asks for such a model",
    "stack.field": "the stack's configuration has no such field",
    "kernels.rope-fusion": "there is no such kernel for the CPU",
    "attention.kernel-device": "there is no such kernel for the CPU",
    "attention.varlen-torch": "this torch has no such function",
    "attention.te-flash": "",
    "attention.te-padding": "",
    "attention.te-deterministic": "",
}


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Something a cell needs cannot be imported, built or found here: an ERROR, as it says nothing about the code.

    `rejection`: what it is in a matrix that lets the cell be rejected, `may_reject`; None where nothing allows it.
    """

    reason: str  # what is missing, and how to get it
    rejection: Rejection | None = None


EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_INPUT = 2
EXIT_UNDECIDED = 3
EXIT_SKIP = 125  # for git bisect run: this commit cannot be judged
EXIT_ABORT = 128  # for git bisect run: stop, no commit can be judged
EXIT_INTERRUPTED = 130


EXIT_MEANINGS: Mapping[int, str] = {  # of every command; git bisect run has two more
    EXIT_PASS: "a cell under test passed, and every other one passed, failed as expected, or was rejected by a rule",
    EXIT_FAIL: "a check failed",
    EXIT_INPUT: "bad input or usage",
    EXIT_UNDECIDED: "inconclusive (something other than the code under test failed), or no cell under test passed",
    EXIT_INTERRUPTED: "interrupted",
}


SOUND = (Outcome.PASS, Outcome.FLAKY, Outcome.XPASS)  # no lane failed
ACCEPTED = (*SOUND, Outcome.XFAIL)  # the run may pass
DECIDED = (*ACCEPTED, Outcome.FAIL)  # a judgement on the code under test
RunVerdict = Literal["pass", "fail", "error"]
_EXIT_CODES: Mapping[RunVerdict, int] = {"pass": EXIT_PASS, "fail": EXIT_FAIL, "error": EXIT_UNDECIDED}


def verdict_of(counts: Mapping[Outcome, int], problems: Sequence[str]) -> RunVerdict:
    """Return the verdict of a run: pass, fail or error. A failure is certain, so it outranks what could not be decided.

    `problems`: why the run as a whole proves nothing, e.g. that no cell passed. XPASS alone does not fail a run:
    the report shows that a known bug is gone.
    """
    if counts.get(Outcome.FAIL):
        return "fail"
    return "error" if counts.get(Outcome.ERROR) or counts.get(Outcome.NOT_RUN) or problems else "pass"


def nothing_passed(under_test: Iterable[Outcome]) -> str:
    """Return why the run cannot pass when no cell under test did; empty when one did, or when one failed, which says
    more.

    Expected failures alone do not show that the stack works. `under_test`: outcomes of the matrix's cells, without the
    controls that the harness added.
    """
    counts = Counter(under_test)
    if any(counts[outcome] for outcome in (*SOUND, Outcome.FAIL)):
        return ""
    found = ", ".join(f"{count} {outcome.value}" for outcome, count in sorted(counts.items()))
    return f"no cell under test passed ({found or 'there are none'})"


def exit_code(verdict: RunVerdict) -> int:
    """Return the exit code, see EXIT_MEANINGS."""
    return _EXIT_CODES[verdict]


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
    """Whether running the cell again can help. Advice: harness/launch/slurm/follow.py decides what is retried."""

    NEVER = "never"
    OTHER_NODES = "other nodes"
    UNKNOWN = "unknown"
