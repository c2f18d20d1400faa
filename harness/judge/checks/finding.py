"""What a check is, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.core.outcomes import Finding, Lane, Severity
from harness.judge.evidence.cell_evidence import CellEvidence


@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """A finding without name and lane, which are those of the check. The fields are harness.core.outcomes.Finding's."""

    message: str
    severity: Severity = Severity.ERROR
    fault_class: str | None = None
    where: dict[str, Any] = field(default_factory=dict)
    measured: Any = None
    bound: Any = None


class Check(NamedTuple):
    """A check: its name, its lane, and the function that returns the findings of one cell.

    A check that compares with a reference finds nothing without one.
    """

    name: str
    lane: Lane
    function: Callable[[CellEvidence], list[CheckFinding]]

    def __call__(self, evidence: CellEvidence) -> list[CheckFinding]:
        return self.function(evidence)

    def findings(self, evidence: CellEvidence) -> list[Finding]:
        """Return the findings of one cell, with the check's name and lane."""
        return [
            Finding(
                lane=self.lane,
                check=self.name,
                message=finding.message,
                severity=finding.severity,
                fault_class=finding.fault_class,
                where=finding.where,
                measured=finding.measured,
                bound=finding.bound,
            )
            for finding in self(evidence)
        ]


def check(lane: Lane) -> Callable[[Callable[[CellEvidence], list[CheckFinding]]], Check]:
    """Make a check of a function, by its name. table.py says in which order checks run."""
    return lambda function: Check(function.__name__, lane, function)
