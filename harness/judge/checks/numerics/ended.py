"""The legs that run the model ended on every rank without exception, native crash or hang."""

from __future__ import annotations

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.endings import TRAINED
from harness.judge.failures.out_of_memory import memory_text, out_of_memory
from harness.judge.stats.distance import exactly


def check(evidence: CellEvidence) -> list[CheckFinding]:
    cause = evidence.cause
    if cause is None or not cause.blames_code or cause.ending.progress.leg not in TRAINED:
        return []
    ending = cause.ending
    fault_class, message = fault_classes.CRASH, cause.message
    if ending.ended == "deadline":
        fault_class = fault_classes.HANG
    elif out_of_memory(ending.failure):
        fault_class = fault_classes.OUT_OF_MEMORY
        message = f"{memory_text(evidence.records[ending.rank])}: {message}"
    return [
        CheckFinding(
            fault_class=fault_class,
            message=f"{message}{cause.others_text}",
            where=cause.where,
            measured=ending.ended,
            bound=exactly("completed", "every rank completes"),
        )
    ]
