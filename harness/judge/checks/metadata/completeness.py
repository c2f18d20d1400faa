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
from harness.judge.failures.pattern_row import Domain

_NOT_THE_CODE = {Domain.HARNESS: fault_classes.HARNESS, Domain.INFRASTRUCTURE: fault_classes.INFRASTRUCTURE}


def check(evidence: CellEvidence) -> list[CheckFinding]:
    cause = evidence.cause
    if cause is None:
        return []
    ending = cause.ending
    if cause.blames_code and ending.progress.leg in TRAINED:
        return []
    crash = fault_classes.HANG if ending.ended == "deadline" else fault_classes.CRASH
    return [
        CheckFinding(
            severity=Severity.ERROR if cause.blames_code else Severity.WARNING,
            fault_class=crash if cause.blames_code else _NOT_THE_CODE.get(cause.domain, fault_classes.UNKNOWN),
            message=f"{cause.message}{cause.others_text}",
            where=cause.where,
            measured=ending.ended,
            bound="completed",
        )
    ]
