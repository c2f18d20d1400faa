"""Exact: the tokens that count in the loss, per step and document, in canary legs too, and the number that it returns.

Gradients are divided by the last.
"""

from __future__ import annotations

from typing import Any

from harness.core.run.records import DocumentLoss
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import counted_tokens, returned_tokens
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.stats.distance import exactly


def check(evidence: CellEvidence) -> list[CheckFinding]:
    for step in evidence.finished_steps:
        findings = _documents(evidence, step) + _step(evidence, step) or _returned(evidence, step)
        if findings:
            return findings  # later steps only repeat the first
    legs = (leg for leg in evidence.legs.values() if leg.leg.model)
    return next((findings for leg in legs if (findings := _leg(evidence, leg))), [])


def _leg(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    """Documents of a canary leg; the canary itself judges tokens outside documents."""
    for item in leg.leg.documents:
        right, seen = item.loss_tokens, leg.losses.get(item.index)
        found = seen.tokens if seen else 0
        if found != right:
            where = leg.positions[item.index].where(leg.leg.name, evidence.last_stage) | {"document": item.index}
            fault_class = fault_classes.TRUNCATION if item.original_length > item.length else fault_classes.TOKEN_COUNT
            message = f"loss tokens of document {item.index} in canary leg {leg.leg.name}: {found}, expected {right}"
            return [_finding(message, fault_class, where, found, right)]
    return []


def _documents(evidence: CellEvidence, step: int) -> list[CheckFinding]:
    losses = evidence.document_losses[step]
    expected = {
        item.document.index: item.document.loss_tokens
        for replica in evidence.plan[step]
        for truth in replica
        for item in truth.batch.placed
    }
    none = DocumentLoss(loss_sum=0.0, tokens=0)
    wrong = [
        document
        for document in sorted({*expected, *losses})
        if losses.get(document, none).tokens != expected.get(document, 0)
    ]
    if not wrong:
        return []
    document = wrong[0]
    found, right = losses.get(document, none).tokens, expected.get(document, 0)
    more = f"; {len(wrong)} of {len(expected)} documents are wrong" if len(wrong) > 1 else ""
    home = evidence.homes[step].get(document)
    truncated = home is not None and home.truncated and len(wrong) == 1
    name = f"loss tokens of document {document} in step {step}"
    where = {"stage": evidence.last_stage, "document": document, "step": step}
    fault_class = fault_classes.TRUNCATION if truncated else _fault_class(evidence, step, found, right)
    return [_finding(f"{name}: {found}, expected {right} by the packing plan{more}", fault_class, where, found, right)]


def _step(evidence: CellEvidence, step: int) -> list[CheckFinding]:
    right = sum(truth.batch.loss_tokens for replica in evidence.plan[step] for truth in replica)
    seen = [(record.rank, item.token_count) for record, item in evidence.step_records(step, pp=evidence.last_stage)]
    for rank, found in [item for item in seen if item[1] is not None] or seen[:1]:
        if found != right:
            where = {"stage": evidence.last_stage, "rank": rank, "step": step}
            message = f"loss tokens of step {step} on rank {rank}: {found}, expected {right} by the packing plan"
            return [_finding(message, _fault_class(evidence, step, found, right), where, found, right)]
    return []


def _returned(evidence: CellEvidence, step: int) -> list[CheckFinding]:
    config = evidence.cell.config
    right = counted_tokens(evidence, step) * (config.layout.cp if config.path.loss_on_every_context_rank else 1)
    for tp, found in enumerate(returned_tokens(evidence, step)):
        if found is None and (config.path.counted != "labels" or config.trainer == "skyrl"):
            continue  # a loss that is divided before it is returned
        if found == right and config.path.counted:
            continue
        name = _ratio(evidence, step, found, right)
        number = "no number of tokens" if found is None else f"{found:g} tokens"
        wanted = f"{right:g} by the packing plan" if config.path.counted else "none, since it is divided already"
        message = f"the losses of step {step} return {number} on all ranks, expected {wanted}"
        message += f"; the ratio is {name}" if name else ""
        where = {"stage": evidence.last_stage, "tp": tp, "step": step} | ({"ratio": name} if name else {})
        return [_finding(message, _fault_class(evidence, step, found, right), where, found, right)]
    return []


def _ratio(evidence: CellEvidence, step: int, found: float | None, right: float) -> str | None:
    return ratio_name(found / right, factors_of(evidence, step), screen=0.0) if found and right else None


def _fault_class(evidence: CellEvidence, step: int, found: float | None, right: float) -> str:
    name = _ratio(evidence, step, found, right)
    return f"{fault_classes.NORMALISATION}: {name}" if name else fault_classes.TOKEN_COUNT


def _finding(message: str, fault_class: str, where: dict[str, Any], found: float | None, right: float) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_class,
        message=message,
        where=where,
        measured=found,
        bound=exactly(right, "the packing plan"),
    )
