"""What the throughput checks share."""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.outcomes import Severity
from harness.judge.checks.finding import CheckFinding
from harness.judge.evidence.cell_evidence import CellEvidence


def not_timed(evidence: CellEvidence, names: Iterable[str]) -> list[CheckFinding]:
    """A warning for every reason why a load that the matrix asks for could not be timed."""
    untimed = {name: why for record in evidence.records.values() for name, why in record.untimed.items()}
    reasons = dict.fromkeys(untimed[name] for name in names if name in untimed)
    return [CheckFinding(severity=Severity.WARNING, message=f"not timed: {why}") for why in reasons]
