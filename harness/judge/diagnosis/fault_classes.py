"""Names of the fault classes, after the classes of the bug corpus (docs/failures.md).

A class is a guess from the pattern of what differs; the finding's numbers are the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.cell.canary_legs import LEG_NAMES
from harness.core.outcomes import Finding, Lane, Severity

MIDDLE_STAGES = "A metadata: middle stages without cu_seqlens"
LAST_STAGE = "A metadata: last stage without cu_seqlens"
TP_RANKS = "A metadata: tp ranks > 0 without cu_seqlens"
LATER_CHUNKS = "A metadata: later model chunks without cu_seqlens"
LOST_IN_MODEL = "A metadata: lost between the data path and attention"
MISSING = "A metadata: packed params missing"
CU_SEQLENS = "A metadata: cu_seqlens wrong"
STALE = "A metadata: cu_seqlens of another micro-batch"
GHOSTS = "A metadata: empty segments that no document has"
MAX_SEQLEN = "A metadata: max_seqlen wrong"
FORM = "A metadata: dtype, shape, type or device"
NOT_THE_SAME = "F throughput: padded offsets copied"
RECOMPUTED = "A metadata: recomputed forward differs"
RANKS_DIFFER = "A metadata: ranks of a replica differ"
PARAMS_UNPACKED = "A metadata: packed params in an unpacked run"
REAL_PADDED = "B real and padded lengths mixed up"
CP_LAYOUT = "B cp layout"
LEAK = "C leak between documents"
MASK = "C attention not causal"
POSITIONS = "C positions of tokens in their documents"
NORMALISATION = "D normalisation"
TOKEN_COUNT = "D token count"
GRADIENT_REDUCTION = "D gradient reduction or weighting"
GRADIENT_NORM = "D gradient norm counts wrongly"
OPTIMIZER = "D between gradients and weights"
HANG = "E hang"
CRASH = "E shapes or crash"
OUT_OF_MEMORY = "out of memory"
FROZEN = "D frozen weights train"
MERGED = "D merged weights differ"
EVALUATION = "D evaluation differs, or changes training"
RESUME = "D resume changes training"
REPORTED = "D reported metric wrong"
MICRO_BATCHES = "E micro-batch counts"
ROUTER = "D router statistics"
PREDICTION = "C multi-token prediction across documents"
WORKLOAD = "F work of a step miscounted"
STAGE_BOUNDARY = "E pipeline stage boundary"
TRUNCATION = "truncation"
DETERMINISM = "run-to-run differences"
PADDING = "padding counts or leaks"
TOKEN_CONTENT = "token content"
NON_FINITE = "non-finite values"
SEGMENT_LOOP = "F throughput: time grows with the number of documents"
PACKED_SLOWER = "F throughput: packed slower than unpacked"
SLOWER_STACK = "F throughput: slower than the base stack"
SLOWER_THAN_BEFORE = "F throughput: slower than before"
INFRASTRUCTURE = "infrastructure"
HARNESS = "defect of the harness"
CONFIGURATION = "configuration refused by upstream"
ABSENT_NAME = "name that the stack lacks"
UNKNOWN = "unclassified"


_ENDED = ("completeness", "ended")  # the findings of a cell that did not complete


def led_by_root(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, root first.

    Metadata in order of the pipeline; numbers in order of steps (a wrong gradient changes all later losses), then those
    of canary legs; times; warnings.

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
    own = (HANG, CRASH)
    numerics = [
        finding
        if finding.fault_class in own or root.fault_class in own
        else replace(finding, fault_class=root.fault_class)
        for finding in numerics
    ]
    return [
        root,
        *(_after(root, finding) for finding in (metadata + numerics)[1:]),
        *slow,
        *(_after(root, finding) for finding in warnings),
    ]


def _step(finding: Finding) -> float:
    """Return the step; for an evaluation after n steps, a place between the last of them and the next."""
    return float(finding.where["after"]) - 0.5 if "after" in finding.where else float(finding.where.get("step", 0))


def _place_in_computation(finding: Finding) -> tuple[bool, bool, bool, int, int, int, int]:
    """Return the sort key: data before the model, then step, stage, layer and micro-batch; without a place last.

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


def _after(root: Finding, finding: Finding) -> Finding:
    """Return the finding, marked as following from the root if that is wrong metadata and explains it.

    Wrong metadata explains numbers and an early end.
    """
    received = root.lane is Lane.METADATA and root.check not in _ENDED
    # If the cause is outside the code, the only finding is that the cell did not complete.
    outside = finding.severity is not Severity.ERROR and finding.fault_class != HARNESS
    follows = received and not outside and (finding.check in _ENDED or finding.lane is Lane.NUMERICS)
    return replace(finding, follows_from=root.check) if follows else finding
