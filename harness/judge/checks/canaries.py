"""Canary legs: a cell against itself, with documents in another order, alone, repeated, padded or cut."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from harness.core.outcomes import Lane
from harness.core.packing.arithmetic import PackedParams
from harness.core.packing.fields import BATCH
from harness.core.run.records import BatchSeen, TensorSeen
from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.evidence.params_differences import FieldProblem, form_problems, value_problems
from harness.judge.locations import numbered
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, fingerprint_distance, finite, stated
from harness.judge.stats.noise import least_norms

EXACT = Bound(value=0.0, origin="on the CPU the same operations on the same numbers agree bit for bit")


def exact_on_cpu(evidence: CellEvidence, otherwise: Bound, *, same_tokens: bool = False) -> Bound:
    """Return EXACT on the CPU for the same kernels on operands of the same shape; else `otherwise`.

    With experts, changed tokens change how many each expert gets, so shapes are the same only with the `same_tokens`.
    """
    # GPUs sum in an order that depends on timing, where kernels use atomics.
    devices = {record.environment.get("device", "cpu") for record in evidence.records.values()}
    shapes = same_tokens or evidence.cell.config.model.moe is None
    return EXACT if shapes and devices == {"cpu"} else otherwise


def changed_losses(
    evidence: CellEvidence, leg: LegEvidence, bound: Bound, skip: Collection[int] = ()
) -> dict[int, float]:
    """Return document -> distance where the loss in the leg differs from step 0, in the order of the leg's packing.

    Leaves out documents in `skip`, and losses that are absent or not finite.
    """
    before = evidence.document_losses.get(0, {})
    changed = {}
    for document in leg.positions:
        old, new = before.get(document), leg.losses.get(document)
        if document in skip or old is None or new is None:
            continue
        off = distance(new.loss_sum, old.loss_sum, bound)
        if math.isfinite(old.loss_sum) and math.isfinite(new.loss_sum) and beyond(off, bound):
            changed[document] = off
    return changed


def change_text(evidence: CellEvidence, leg: LegEvidence, document: int) -> str:
    """Return e.g. 'the loss sum of document 1 changed from 17.25 to 17.5'."""
    before, after = evidence.document_losses[0][document].loss_sum, leg.losses[document].loss_sum
    return f"the loss sum of document {document} changed from {before!r} to {after!r}"


_Difference = tuple[str, dict[str, Any], float, Bound]


@check(Lane.NUMERICS)
def determinism(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that step 0, run again, gives the same activations, losses and gradients; needs no control."""
    leg = evidence.legs.get("determinism")
    if leg is None or not evidence.fingerprinted:
        return []
    differences = [*_activations(evidence, leg), *_losses(evidence, leg), *_gradients(evidence, leg)]
    if not differences:
        return []
    what, where, off, bound = differences[0]
    return [
        CheckFinding(
            fault_class=fault_classes.DETERMINISM,
            message=f"{what} changes when step 0 runs again with the same weights and documents, off by {off:.3g} > "
            f"{bound_text(bound)}; {len(differences)} values differ",
            where=where,
            measured=off,
            bound=stated(bound),
        )
    ]


def _activations(evidence: CellEvidence, leg: LegEvidence) -> Iterator[_Difference]:
    bound = exact_on_cpu(evidence, evidence.own.activation, same_tokens=True)
    differences = []
    for rank, record in evidence.records.items():
        again = {activation.layer: activation.documents for activation in leg.seen[rank].activations}
        for activation in record.activations:
            for document, old in activation.documents.items():
                new = again.get(activation.layer, {}).get(document)
                off = _excess(new, old, bound)
                if off:
                    what = f"the activation of document {document} after layer {activation.layer} on rank {rank}"
                    differences.append(
                        (activation.layer, what, leg.at_rank(rank, layer=activation.layer, document=document), off)
                    )
    for _, what, where, off in sorted(differences, key=lambda difference: difference[0]):
        yield what, where, off, bound


def _losses(evidence: CellEvidence, leg: LegEvidence) -> Iterator[_Difference]:
    bound = exact_on_cpu(evidence, evidence.own.document_loss, same_tokens=True)
    for document, off in changed_losses(evidence, leg, bound).items():
        where = leg.positions[document].where("determinism", evidence.last_stage) | {"document": document}
        yield f"the loss of document {document}", where, off, bound


def _gradients(evidence: CellEvidence, leg: LegEvidence) -> Iterator[_Difference]:
    bound = exact_on_cpu(evidence, evidence.own.parameter_gradient, same_tokens=True)
    least = least_norms(evidence.own, (gradient.fingerprint for gradient in evidence.gradients.values()))
    for rank, record in evidence.records.items():
        again = {parameter.name: parameter.gradient for parameter in leg.seen[rank].parameters}
        for parameter in record.parameters:
            off = _excess(again.get(parameter.name), parameter.gradient, bound, least.get(parameter.name, 0.0))
            if off:
                yield (
                    f"the gradient of {parameter.name} on rank {rank}",
                    leg.at_rank(rank, parameter=parameter.name),
                    off,
                    bound,
                )


def _excess(new: Fingerprint | None, old: Fingerprint, bound: Bound, least: float = 0.0) -> float:
    """Return the distance if it exceeds the bound, else 0; 0 too for absent or non-finite values, which others check.

    Under an exact bound any difference of the fingerprints counts, though the estimated distance may round to 0.
    """
    if new is None or not finite(new) or not finite(old):
        return 0.0
    off = fingerprint_distance(new, old, least_norm=least)
    if bound.value == 0:
        return off or 5e-324 if new != old else 0.0  # the smallest float above 0
    return off if beyond(off, bound) else 0.0


LEGS = ("isolation", "isolation-middle")
_MIN_TOKENS = 4  # a changed document of so many tokens cannot have got the same tokens by chance


@check(Lane.NUMERICS)
def isolation(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that other tokens in one document of a micro-batch change no other document's loss; needs no control.

    Each of two legs changes one document per micro-batch, the first or one in the middle, so that the culprit is known.
    """
    for name in LEGS:
        leg = evidence.legs.get(name)
        findings = (_leaked(evidence, leg) or _unchanged(evidence, leg)) if leg else []
        if findings:
            return findings
    return []


def _leaked(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    bound = exact_on_cpu(evidence, evidence.own.document_loss)
    victims = changed_losses(evidence, leg, bound, skip=leg.leg.changed)
    if not victims:
        return []
    victim, off = next(iter(victims.items()))
    position = leg.positions[victim]
    near = [document for document in leg.leg.changed if _together(leg, document, victim)]
    # The one in the victim's micro-batch, since only attention there can have carried anything.
    culprit = near[0] if near else min(leg.leg.changed)
    elsewhere = "" if near else ", in another micro-batch,"
    return [
        CheckFinding(
            fault_class=fault_classes.LEAK,
            message=f"document {culprit} leaks into document {victim} ({position}): tokens of document {culprit}"
            f"{elsewhere} were changed, but {change_text(evidence, leg, victim)}, off by {off:.3g} > "
            f"{bound_text(bound)}; the loss of {len(victims)} of {len(leg.positions) - len(leg.leg.changed)} documents "
            "with the same tokens changed",
            where=position.where(leg.leg.name, evidence.last_stage)
            | {"document": victim, "culprit": culprit, "documents": list(victims)},
            measured=off,
            bound=stated(bound),
        )
    ]


def _together(leg: LegEvidence, document: int, victim: int) -> bool:
    here, there = leg.positions[document], leg.positions[victim]
    return (here.dp, here.micro_batch) == (there.dp, there.micro_batch)


def _unchanged(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    """Return changed documents with an unchanged loss: the model did not compute on the batches of the data path."""
    documents = {document.index: document for document in leg.leg.documents}
    changed = [index for index in leg.positions if index in leg.leg.changed and documents[index].length >= _MIN_TOKENS]
    before = evidence.document_losses.get(0, {})
    stuck = [
        index
        for index in changed
        if documents[index].loss_tokens
        and index in before
        and index in leg.losses
        # Equal to the last bit: other tokens have another loss, however small the model.
        and before[index].loss_sum == leg.losses[index].loss_sum
    ]
    if not stuck:
        return []
    return [
        CheckFinding(
            fault_class=fault_classes.TOKEN_CONTENT,
            message=f"{numbered('document', stuck)} got other tokens, but the loss is the same, bit for bit: the new "
            "tokens did not reach the model",
            where=leg.positions[stuck[0]].where(leg.leg.name, evidence.last_stage) | {"document": stuck[0]},
            measured=leg.losses[stuck[0]].loss_sum,
            bound=exactly("a different loss", "other tokens have a different loss"),
        )
    ]


@check(Lane.NUMERICS)
def repetition(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that copies of one document have the same loss, wherever each is in its pack; needs no control."""
    leg = evidence.legs.get("repetition")
    if leg is None:
        return []
    bound = evidence.own.repeated_document
    original = next(iter(leg.positions))  # first in its pack: nothing can leak into it
    right = leg.losses.get(original)
    if right is None or not math.isfinite(right.loss_sum):
        return []  # `token_count` and `finiteness` cover these
    off = {
        copy: distance(leg.losses[copy].loss_sum, right.loss_sum, bound)
        for copy in leg.positions
        if copy in leg.losses and math.isfinite(leg.losses[copy].loss_sum)
    }
    wrong = [copy for copy, value in off.items() if beyond(value, bound)]
    return [_repetition_finding(evidence, leg, original, wrong, off)] if wrong else []


def _repetition_finding(
    evidence: CellEvidence, leg: LegEvidence, original: int, wrong: list[int], off: dict[int, float]
) -> CheckFinding:
    bound, copy = evidence.own.repeated_document, wrong[0]
    position = leg.positions[copy]
    return CheckFinding(
        # The first document of a pack has nothing before it, and attention is causal.
        fault_class=fault_classes.LEAK if position.number else fault_classes.UNKNOWN,
        message=f"all documents are copies of one, but the loss sum of copy {copy} is {leg.losses[copy].loss_sum:.9g} "
        f"({position}, which has {len(leg.plan[position.dp][position.micro_batch].placed)}), and that of copy "
        f"{original} is {leg.losses[original].loss_sum:.9g}, off by {off[copy]:.3g} > {bound_text(bound)}; "
        f"{len(wrong)} of {len(off)} differ",
        where=position.where("repetition", evidence.last_stage)
        | {"document": copy, "original": original, "number": position.number, "documents": wrong},
        measured=off[copy],
        bound=stated(bound),
    )


@check(Lane.NUMERICS)
def order(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that no loss depends on which documents share a pack, and in what order; needs no control."""
    leg, bound = evidence.legs.get("order"), evidence.own.document_loss
    wrong = changed_losses(evidence, leg, bound) if leg else {}
    if leg is None or not wrong:
        return []
    document, off = next(iter(wrong.items()))
    position, before = leg.positions[document], evidence.document_positions[0][document]
    later = all(leg.positions[moved].number for moved in wrong)
    return [
        CheckFinding(
            fault_class=fault_classes.LEAK if later else fault_classes.UNKNOWN,
            message=f"with documents in reverse order, {change_text(evidence, leg, document)}, off by {off:.3g} > "
            f"{bound_text(bound)} ({position}; before in micro-batch {before.micro_batch}); the loss of "
            f"{len(wrong)} of {len(leg.positions)} documents changed",
            where=position.where("order", evidence.last_stage)
            | {"document": document, "number": position.number, "documents": list(wrong)},
            measured=off,
            bound=stated(bound),
        )
    ]


@check(Lane.NUMERICS)
def padding(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that other token ids in the padding change no document's loss and count nowhere; needs no control."""
    leg = evidence.legs.get("padding")
    return (_changed(evidence, leg) or _counted(evidence, leg)) if leg else []


def _changed(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    bound = exact_on_cpu(evidence, evidence.own.document_loss)
    wrong = changed_losses(evidence, leg, bound)
    if not wrong:
        return []
    document, off = next(iter(wrong.items()))
    position = leg.positions[document]
    return [
        CheckFinding(
            fault_class=fault_classes.PADDING,
            message=f"only the token ids of padding slots were changed, but {change_text(evidence, leg, document)}, "
            f"off by {off:.3g} > {bound_text(bound)} ({position}); the loss of {len(wrong)} of {len(leg.positions)} "
            "documents changed",
            where=position.where("padding", evidence.last_stage) | {"document": document, "documents": list(wrong)},
            measured=off,
            bound=stated(bound),
        )
    ]


def _counted(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    right = sum(batch.loss_tokens for replica in leg.plan for batch in replica)
    if leg.token_count == right:
        return []
    return [
        CheckFinding(
            fault_class=fault_classes.PADDING,
            message=f"only the token ids of padding slots were changed, but now {leg.token_count} tokens count in the "
            f"loss, expected {right}: padding is recognised by its token id",
            where={"stage": evidence.last_stage, "leg": "padding", "step": 0},
            measured=leg.token_count,
            bound=exactly(right, "the packing plan"),
        )
    ]


@check(Lane.NUMERICS)
def truncation(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that documents that are too long keep their head, with its labels and masks; no model runs.

    Packed params must be those of the truncated documents.
    """
    leg = evidence.legs.get("truncation")
    if leg is None:
        return []
    wrong = [
        (rank, batch.micro_batch, name, tensor)
        for rank in sorted(leg.seen)
        for batch in leg.seen[rank].batches
        for name in BATCH
        if (tensor := getattr(batch, name)) is not None and tensor.mismatches
    ]
    if not wrong:
        return _params(evidence, leg)
    rank, micro_batch, name, tensor = wrong[0]
    ranks = sorted({rank for rank, *_ in wrong})
    return [_truncation_finding(leg, rank, micro_batch, name, tensor, ranks)]


def _params(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    """Return the first field of packed params, by rank and micro-batch, that differs from the leg's packing."""
    style = leg.config.style
    for rank in sorted(leg.seen):
        record = evidence.records[rank]
        device = record.environment.get("torch_device")
        for batch in leg.seen[rank].batches:
            truth = _truth(leg, rank, batch)
            if truth is None or batch.params is None:
                continue
            params = record.packed_params[batch.params]
            wrong = [*value_problems(params, truth, style), *form_problems(params, style, device, evidence.layout.cp)]
            if wrong:
                return [_params_finding(leg, rank, batch.micro_batch, wrong[0])]
    return []


def _truth(leg: LegEvidence, rank: int, batch: BatchSeen) -> PackedParams | None:
    planned = leg.plan[leg.config.layout.coordinates(rank).dp]
    return planned[batch.micro_batch].params() if 0 <= batch.micro_batch < len(planned) else None


def _params_finding(leg: LegEvidence, rank: int, micro_batch: int, wrong: FieldProblem) -> CheckFinding:
    name = f"{wrong.field} of {wrong.tensor}" if wrong.tensor else wrong.field
    return CheckFinding(
        fault_class=fault_classes.TRUNCATION,
        message=f"with documents that are too long, {name} on rank {rank} is {wrong.measured} in micro-batch "
        f"{micro_batch}, expected {wrong.expected}",
        where=leg.at_rank(rank, micro_batch=micro_batch, field=wrong.field),
        measured=wrong.measured,
        bound=wrong.expected,
    )


def _truncation_finding(
    leg: LegEvidence, rank: int, micro_batch: int, field: str, tensor: TensorSeen, ranks: list[int]
) -> CheckFinding:
    where = leg.at_rank(rank, micro_batch=micro_batch, field=field, ranks=ranks)
    detail = f"its shape is {tensor.shape}"
    if tensor.first:
        document, token, expected, value = tensor.first
        where |= {"document": document, "token": token}
        detail = f"token {token} of document {document} is {value}, expected {expected}"
    return CheckFinding(
        fault_class=fault_classes.TRUNCATION,
        message=f"with documents that are too long, {tensor.mismatches} slots of {field} on rank {rank} differ from "
        f"the plan in micro-batch {micro_batch}: {detail}",
        where=where,
        measured=tensor.first[3] if tensor.first else tensor.mismatches,
        bound=exactly(tensor.first[2] if tensor.first else 0, "the packing plan"),
    )
