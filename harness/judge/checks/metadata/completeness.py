"""Every rank left a record and finished the metadata leg.

A data path that raises or hangs while it only returns batches is itself wrong, so that is a metadata finding; `ended`
covers the legs that run the model. Causes that do not blame the code are warnings: verdict.py makes them ERROR, not
FAIL.
"""

from __future__ import annotations

from harness.core.outcomes import Severity
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.endings import TRAINED
from harness.judge.failures.cause import Cause
from harness.judge.failures.pattern_row import Domain
from harness.judge.failures.patterns import ABSENT_NAME, CONFIGURATION


def check(evidence: CellEvidence) -> list[CheckFinding]:
    cause = evidence.cause
    if cause is None:
        return []
    ending = cause.ending
    if cause.blames_code and ending.progress.leg in TRAINED:
        return []
    return [
        CheckFinding(
            severity=Severity.ERROR if cause.blames_code else Severity.WARNING,
            fault_class=_fault_class(cause),
            message=f"{cause.message}{cause.others_text}",
            where=cause.where,
            measured=ending.ended,
            bound="completed",
        )
    ]


def _fault_class(cause: Cause) -> str:
    if cause.blames_code:
        return fault_classes.HANG if cause.ending.ended == "deadline" else fault_classes.CRASH
    if cause.domain == Domain.HARNESS:
        return fault_classes.HARNESS
    if cause.failure_class.name == CONFIGURATION.name:
        return fault_classes.CONFIGURATION
    if cause.failure_class.name == ABSENT_NAME.name:
        return fault_classes.ABSENT_NAME
    outside = cause.domain == Domain.INFRASTRUCTURE or cause.ending.ended in ("killed", "missing")
    return fault_classes.INFRASTRUCTURE if outside else fault_classes.UNKNOWN
