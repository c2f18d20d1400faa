"""Checks that numbers agree which the harness computed twice, or which ranks share, once every check has passed.

Whatever the code under test did, a real record cannot contradict itself here. A difference means that a file was
changed, or that the harness is wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.core.packing.arithmetic import PAD
from harness.core.run.record_limits import MOST_TOKEN_LOSSES
from harness.core.run.records import DocumentLoss, RankRecord, StepSeen, TrainingSeen
from harness.core.run.tensor_records import Fingerprint
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.evaluations import evaluations_of
from harness.judge.stats.distance import add

FP32_SUM = 1e-4  # relative bound for a sum in fp32 over the tokens of a micro-batch
EXACT = 1e-6  # relative bound for a sum in float64


def contradiction(evidence: CellEvidence) -> str:
    """The first contradiction; empty if there is none."""
    return next(_contradictions(evidence), "")


def _contradictions(evidence: CellEvidence) -> Iterator[str]:
    yield from _steps(evidence)
    yield from _result(evidence)
    for rank, record in evidence.records.items():
        yield from (f"record of rank {rank}: {problem}" for problem in _record(evidence, record))
    yield from _legs(evidence)


def _steps(evidence: CellEvidence) -> Iterator[str]:
    """The loss of a step or an evaluation is the sum of its documents' losses; every token has one loss."""
    for step, documents in evidence.document_losses.items():
        whole = sum(loss.loss_sum for loss in documents.values())
        for record, seen in evidence.step_records(step, pp=evidence.last_stage):
            if seen.loss_sum is not None and not _near(seen.loss_sum, whole, FP32_SUM):
                yield (
                    f"record of rank {record.rank}: steps: step {step}: loss_sum is {seen.loss_sum:.9g}, the documents "
                    f"add up to {whole:.9g}"
                )
    for one in evaluations_of(evidence):
        whole = sum(loss.loss_sum for loss in one.documents.values())
        for record, found in one.seen:
            if found.loss_sum is not None and not _near(found.loss_sum, whole, FP32_SUM):
                yield (
                    f"record of rank {record.rank}: evaluations: number {one.number}: loss_sum is "
                    f"{found.loss_sum:.9g}, the documents add up to {whole:.9g}"
                )
    positions = Counter(
        (token.document, token.position)
        for _, seen in evidence.step_records(0, pp=evidence.last_stage, tp=0)
        for token in seen.tokens
    )
    twice = [place for place, count in positions.items() if count > 1]
    if twice:
        yield f"steps: step 0: token {twice[0][1]} of document {twice[0][0]} has two losses"


def _result(evidence: CellEvidence) -> Iterator[str]:
    if evidence.result is None:
        return
    slowest = max(sum(seen.time_s for seen in record.steps) for record in evidence.records.values())
    if not _near(evidence.result.steps_s, slowest, EXACT):
        yield f"result.json: steps_s is {evidence.result.steps_s!r}, the slowest rank took {slowest!r}"


def _record(evidence: CellEvidence, record: RankRecord) -> Iterator[str]:
    for step in record.steps[:1]:
        recorded = step.tokens or step.documents
        if recorded and not step.step and len(step.tokens) < MOST_TOKEN_LOSSES:
            yield from _tokens(evidence, step)
    for seen in record.parameters:
        if seen.parts and not _adds_up(seen.parts, seen.gradient):
            yield f"parameters: the parts of {seen.name} do not add up to its gradient"
    for leg in record.legs:
        if leg.training is not None:
            yield from (f"legs: {leg.leg}: {problem}" for problem in _second_training(leg.training))
        for seen in leg.parameters:
            if seen.parts and not _adds_up(seen.parts, seen.gradient):
                yield f"legs: {leg.leg}: the parts of {seen.name} do not add up to its gradient"


def _tokens(evidence: CellEvidence, step: StepSeen) -> Iterator[str]:
    """The losses of a document's tokens add up to its loss."""
    sums: dict[int, DocumentLoss] = {}
    lengths = evidence.document_lengths
    for token in step.tokens:
        part = sums.setdefault(token.document, DocumentLoss(loss_sum=0.0, tokens=0))
        part.loss_sum += token.loss
        part.tokens += 1
        if not 0 <= token.position < lengths.get(token.document, 0):
            yield f"steps: step 0: document {token.document} has no token {token.position}"
    for document, whole in step.documents.items():
        parts = sums.get(document, DocumentLoss(loss_sum=0.0, tokens=0))
        if parts.tokens != whole.tokens or not _near(parts.loss_sum, whole.loss_sum, EXACT):
            yield (
                f"steps: step 0: document {document} has loss {whole.loss_sum:.9g} over {whole.tokens} tokens, its "
                f"tokens add up to {parts.loss_sum:.9g} over {parts.tokens}"
            )
    foreign = sums.keys() - step.documents.keys()
    if foreign:
        yield f"steps: step 0: losses of tokens of document {min(foreign)}, which has none"


def _adds_up(parts: Sequence[Fingerprint], whole: Fingerprint) -> bool:
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    scale = math.sqrt(whole.norm_sq)
    pairs = zip(total.projections, whole.projections)
    return _near(total.norm_sq, whole.norm_sq, EXACT) and all(abs(a - b) <= EXACT * scale for a, b in pairs)


def _legs(evidence: CellEvidence) -> Iterator[str]:
    """The loss of a canary leg is the sum of its documents'; tp ranks compute the same."""
    for name, leg in evidence.legs.items():
        for rank, seen in sorted(leg.seen.items()):
            at = evidence.layout.coordinates(rank)
            if not leg.leg.model or at.pp != evidence.last_stage:
                continue
            recorder = leg.seen[evidence.layout.rank(replace(at, tp=0))]  # only tp 0 records documents
            owned = [loss for document, loss in recorder.documents.items() if document != PAD]
            tokens, whole = sum(loss.tokens for loss in owned), sum(loss.loss_sum for loss in owned)
            if tokens != seen.token_count or not _near(seen.loss_sum, whole, FP32_SUM):
                yield (
                    f"record of rank {rank}: legs: {name}: loss_sum is {seen.loss_sum:.9g} over {seen.token_count} "
                    f"tokens, the documents add up to {whole:.9g} over {tokens}"
                )


def _second_training(seen: TrainingSeen) -> Iterator[str]:
    for one in (*seen.steps, *seen.evaluations):
        whole = sum(loss.loss_sum for document, loss in one.documents.items() if document != PAD)
        if math.isfinite(whole) and not _near(one.loss_sum, whole, FP32_SUM):
            yield f"after step {one.after}: loss_sum is {one.loss_sum:.9g}, the documents add up to {whole:.9g}"


def _near(one: float, other: float, bound: float) -> bool:
    return abs(one - other) <= bound * max(abs(one), abs(other))
