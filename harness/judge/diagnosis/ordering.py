"""Puts the findings of a cell in the order of the computation, and marks those that follow from the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.cell.canary_legs import LEG_NAMES
from harness.core.outcomes import Finding, Lane, Severity
from harness.judge.diagnosis import fault_classes

_ENDED = ("completeness", "ended")  # the findings of a cell that did not complete


def led_by_root(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, root first: metadata in order of the pipeline; numbers in order of steps (a wrong gradient changes
    all later losses), then those of canary legs; times; warnings.

    What goes wrong in the model after wrong metadata follows from it. Findings of the numerics lane take the fault
    class of the first finding, as its effects; hangs and crashes keep their own.
    """
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    warnings = [finding for finding in findings if finding.severity is not Severity.ERROR]
    slow = [finding for finding in errors if finding.lane is Lane.THROUGHPUT]
    errors = [finding for finding in errors if finding.lane is not Lane.THROUGHPUT]
    if not errors:
        return slow + warnings
    metadata = sorted((finding for finding in errors if finding.lane is Lane.METADATA), key=_place_in_computation)
    numerics = [finding for finding in errors if finding.lane is not Lane.METADATA]
    numerics.sort(key=lambda finding: (finding.where.get("leg") in LEG_NAMES, _step(finding)))
    root = (metadata + numerics)[0]
    own = (fault_classes.HANG, fault_classes.CRASH)
    numerics = [
        item if item.fault_class in own or root.fault_class in own else replace(item, fault_class=root.fault_class)
        for item in numerics
    ]
    return [
        root,
        *(_after(root, item) for item in (metadata + numerics)[1:]),
        *slow,
        *(_after(root, item) for item in warnings),
    ]


def _step(finding: Finding) -> float:
    """The step; for an evaluation after n steps, a place between the last of them and the next."""
    return float(finding.where["after"]) - 0.5 if "after" in finding.where else float(finding.where.get("step", 0))


def _place_in_computation(finding: Finding) -> tuple[bool, bool, bool, int, int, int, int]:
    """Data before the model, then by step, stage, layer and micro-batch; findings without a place last.

    The finding that a cell did not complete comes after the faults found before it ended.
    """
    where = finding.where
    return (
        finding.check in _ENDED,
        "stage" not in where,
        where.get("leg") == "training",
        int(where.get("step", 0)),
        int(where.get("stage", 0)),
        int(where.get("layer", 0)),
        int(where.get("micro_batch", 0)),
    )


def _after(root: Finding, item: Finding) -> Finding:
    """The finding, marked as following from the root if that is wrong metadata and it is a number or an early end."""
    received = root.lane is Lane.METADATA and root.check not in _ENDED
    # If the cause is outside the code, the only finding is that the cell did not complete.
    outside = item.severity is not Severity.ERROR and item.fault_class != fault_classes.HARNESS
    follows = received and not outside and (item.check in _ENDED or item.lane is Lane.NUMERICS)
    return replace(item, follows_from=root.check) if follows else item
