"""Evaluations between steps take place, have the tokens of their plan and the reference's losses, and report them;
modules are in evaluation mode in them, and in training mode in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.run.records import RankRecord
from harness.core.tolerances import Bound, looser
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.localise import layer_off
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.evaluations import Evaluation, evaluations_of
from harness.judge.locations import where_of
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    """The first finding of each kind."""
    kinds = (_absent(evidence), _modes(evidence), _tokens(evidence), _losses(evidence), _reports(evidence))
    return [finding for kind in kinds if (finding := next(kind, None)) is not None]


def _absent(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Upstream's trainers decide themselves when they evaluate."""
    right = list(evidence.cell.config.evaluations.values())
    for record in evidence.records.values():
        found = [seen.after for seen in record.evaluations]
        if record.ended == "completed" and not evidence.cell.config.own_trainer and found != right:
            yield _finding(
                f"rank {record.rank} evaluated after {_steps(found)}, expected after {_steps(right)}",
                _where(record),
                measured=found,
                bound=exactly(right, "the cell's configuration"),
            )


def _steps(after: list[int]) -> str:
    return f"steps {', '.join(map(str, after))}" if after else "no step"


def _modes(evidence: CellEvidence) -> Iterator[CheckFinding]:
    for record in evidence.records.values():
        for step in record.steps:
            if not step.training:
                text = f"a module of rank {record.rank} is in evaluation mode in step {step.step}"
                yield _finding(text, _where(record, step=step.step), measured=False, bound=_TRAINS)
        for seen in record.evaluations:
            if seen.training:
                text = f"a module of rank {record.rank} is in training mode in the evaluation after step {seen.after}"
                yield _finding(text, _where(record, after=seen.after), measured=True, bound=_EVALUATES)


_TRAINS = exactly(True, "modules train in steps")
_EVALUATES = exactly(False, "modules do not train in evaluations")


def _tokens(evidence: CellEvidence) -> Iterator[CheckFinding]:
    for one in evaluations_of(evidence):
        right = {
            item.document.index: item.document.loss_tokens
            for replica in one.plan
            for batch in replica
            for item in batch.placed
        }
        for document in sorted(right):
            found = one.documents[document].tokens if document in one.documents else 0
            if found != right[document]:
                yield _finding(
                    f"loss tokens of document {document} in the evaluation after step {one.after}: "
                    f"{found}, expected {right[document]} by the packing plan",
                    {"stage": evidence.last_stage, "after": one.after, "document": document},
                    measured=found,
                    bound=exactly(right[document], "the packing plan"),
                )
        for record, seen in one.seen:
            if seen.token_count != one.tokens:
                yield _finding(
                    f"loss tokens of the evaluation after step {one.after} on rank {record.rank}: {seen.token_count}, "
                    f"expected {one.tokens} by the packing plan",
                    _where(record, after=one.after),
                    measured=seen.token_count,
                    bound=exactly(one.tokens, "the packing plan"),
                )


def _losses(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """With the reference's weights at that step, the loss is the reference's too."""
    if evidence.reference is None or not evidence.same_rows:
        return
    expected = {one.number: one.loss_sum for one in evaluations_of(evidence.reference)}
    for one in evaluations_of(evidence):
        bound, right = evidence.bound("step_loss", one.after), expected.get(one.number)
        if bound is None:
            return
        for record, seen in one.seen:
            if right is not None and _differs(seen.loss_sum, right, bound):
                yield _finding(
                    f"loss sum of the evaluation after step {one.after} on rank {record.rank}: "
                    f"{_text(seen.loss_sum, right, bound, evidence.origin)}",
                    _where(record, after=one.after),
                    measured=seen.loss_sum,
                    bound=stated(bound),
                )
    yield from _documents(evidence)
    yield from _outputs(evidence)


def _documents(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """So are those of documents, whose errors may cancel in a sum."""
    assert evidence.reference is not None
    expected = {one.number: one.documents for one in evaluations_of(evidence.reference)}
    for one in evaluations_of(evidence):
        bounds = evidence.bound("document_loss", one.after), evidence.bound("step_loss", one.after)
        if bounds[0] is None or bounds[1] is None:
            return
        bound, right = looser(bounds[0], bounds[1]), expected.get(one.number, {})
        wrong = [
            document
            for document, loss in sorted(one.documents.items())
            if document in right and _differs(loss.loss_sum, right[document].loss_sum, bound)
        ]
        if wrong:
            found, expects = one.documents[wrong[0]].loss_sum, right[wrong[0]].loss_sum
            yield _finding(
                f"loss sum of document {wrong[0]} in the evaluation after step {one.after}: "
                f"{_text(found, expects, bound, evidence.origin)}; {len(wrong)} of {len(right)} documents differ",
                {"stage": evidence.last_stage, "after": one.after, "document": wrong[0], "documents": wrong},
                measured=found,
                bound=stated(bound),
            )


def _outputs(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """So are the outputs of layers: in bf16 a loss hides what a whole block adds to a model that has hardly trained.

    Controls that train twice have no second outputs, from which bounds after an update would follow.
    """
    if evidence.reference is None or not evidence.by_oracle:
        return
    expected = {one.number: one.outputs for one in evaluations_of(evidence.reference)}
    for one in evaluations_of(evidence):
        bound = evidence.bound("activation", one.after)
        if bound is None:
            return
        off = layer_off(one.outputs, expected.get(one.number, {}), one.documents, bound) if one.outputs else None
        if off is not None:
            document, value = off.documents[0], off.off[off.documents[0]]
            yield _finding(
                f"activations of the evaluation after step {one.after} first differ after layer {off.layer}: document "
                f"{document} off by {value:.3g} > {bound_text(bound)}; {len(off.documents)} of {len(off.off)} "
                "documents differ there",
                {"layer": off.layer, "after": one.after, "document": document, "documents": off.documents},
                measured=value,
                bound=stated(bound),
            )


def _reports(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """What upstream reports is the mean, as it defines it, of the losses that the harness recorded."""
    config = evidence.cell.config
    if config.own_trainer:
        return
    for one in evaluations_of(evidence):
        right, name = _mean(one, config)
        bound = evidence.own_bound("step_loss", one.after)
        for record, seen in one.seen:
            if _differs(seen.reported, right, bound):
                yield _finding(
                    f"reported loss of the evaluation after step {one.after} on rank {record.rank}: "
                    f"{_text(seen.reported, right, bound, f'the mean over {name} is')}",
                    _where(record, after=one.after),
                    measured=seen.reported,
                    bound=stated(bound),
                    fault_class=fault_classes.REPORTED,
                )


def _mean(one: Evaluation, config: CellConfig) -> tuple[float, str]:
    """The mean loss that the trainer of a cell reports, and over what it is."""
    if config.trainer != "megatron" or not config.path.sft_flag:
        total = math.nan if one.loss_sum is None else one.loss_sum
        return total / max(one.tokens, 1), "tokens"
    means = []
    for batch in (batch for replica in one.plan for batch in replica):
        losses = [one.documents[item.document.index] for item in batch.placed if item.document.index in one.documents]
        means.append(sum(loss.loss_sum for loss in losses) / max(sum(loss.tokens for loss in losses), 1))
    return sum(means) / len(means), "micro-batches"


def _differs(found: float | None, right: float, bound: Bound) -> bool:
    """Values that are not finite are left to `finiteness`."""
    return found is None or (math.isfinite(found) and beyond(distance(found, right, bound), bound))


def _text(found: float | None, right: float, bound: Bound, name: str) -> str:
    if found is None:
        return f"none, {name} {right:.9g}"
    return f"{found:.9g}, {name} {right:.9g}, off by {distance(found, right, bound):.3g} > {bound_text(bound)}"


def _where(record: RankRecord, **more: Any) -> dict[str, Any]:
    return where_of(record.place, rank=record.rank, **more)


def _finding(
    message: str,
    where: dict[str, Any],
    *,
    measured: Any,
    bound: dict[str, Any],
    fault_class: str = fault_classes.EVALUATION,
) -> CheckFinding:
    return CheckFinding(fault_class=fault_class, message=message, where=where, measured=measured, bound=bound)
