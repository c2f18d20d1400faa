"""Whether an earlier attempt that did not decide anything may have been a failure of the code.

A lost node leaves an attempt without a result, or with records that end in the middle: that proves nothing, and the
cell may still pass. Files that are damaged or contradict each other are different: a failure may be what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.failures.cause import cause_of
from harness.judge.required.identity import result_problem


def doubt_about(attempt: CellEvidence, reason: str, *, usable: bool, failed: bool) -> str:
    """Why a failure of the code cannot be excluded; empty if the attempt ended for another or an unknown cause.

    `reason`: of the attempt's ERROR. `usable`: its records can be trusted. `failed`: a lane failed.
    """
    if attempt.damaged:
        return attempt.damaged[0]
    if problem := next(_contradictions(attempt), ""):
        return f"result.json: {problem}"
    if not attempt.records:
        return ""
    if not usable:
        return reason
    if attempt.cause is not None:
        # That a node had an error too does not excuse an exception in the code.
        result = None if attempt.result is None else replace(attempt.result, status="failed")
        cause = cause_of(attempt.endings, result)
        return cause.message if cause is not None and cause.blames_code else ""
    lost = attempt.result is None or attempt.result.status == "error"
    return "" if lost and not failed else reason


def _contradictions(attempt: CellEvidence) -> Iterator[str]:
    """Records that an attempt with this result must have left."""
    result = attempt.result
    if result is None:
        return
    if problem := result_problem(attempt, result):
        yield problem
    for ending in result.ranks:
        if ending.ended != "missing" and ending.rank not in attempt.records:
            yield f"rank {ending.rank} {ending.ended}, but left no record"
    if result.status == "completed" and not attempt.records:
        yield "status is completed, but no rank left a record"
