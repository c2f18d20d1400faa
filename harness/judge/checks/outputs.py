"""What the model computes forward: how far it came, finite numbers, counts of tokens, outputs of layers, losses."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from harness.core.outcomes import Lane
from harness.core.packing.arithmetic import PAD
from harness.core.run.records import DocumentLoss
from harness.core.text import counted
from harness.core.tolerances import Bound, looser
from harness.judge.checks.canaries import changed_losses, exact_on_cpu
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes, localise
from harness.judge.diagnosis.localise import Boundaries, LayerOff, first_layer_off, first_token_off, token_boundaries
from harness.judge.diagnosis.ratios import DOCUMENTS, common_ratio, factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import counted_labels, counted_tokens, returned_tokens
from harness.judge.evidence.endings import TRAINED
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.failures.classification import memory_text, out_of_memory
from harness.judge.locations import numbered
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, stated

_FP32_SUM = Bound(value=1e-4, origin="a sum in fp32 over the tokens of a micro-batch")


@check(Lane.NUMERICS)
def ended(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the legs that run the model ended on every rank without exception, native crash or hang."""
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


@check(Lane.NUMERICS)
def finiteness(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that no number that a rank computed, in any leg, is NaN or infinite; later checks leave such values out.

    Checked on each rank separately: a sum over ranks, or the copy of another rank, would hide which rank computed it.
    Not checked where the control's training diverges.
    """
    bad = [
        (number, rank)
        for rank, scan in evidence.scans.items()
        for number in scan.bad
        # From the step on where the control itself diverges, infinities are right.
        if number.where.get("step", number.where.get("after", 0)) < evidence.diverges
    ]
    if not bad:
        return []
    # By the order in which numbers are computed: NaN spreads, and the first one is the cause.
    first, rank = min(bad, key=lambda entry: (entry[0].order, entry[1]))
    ranks = sorted({rank for _, rank in bad})
    more = f"; {len(bad) - 1} further values on {numbered('rank', ranks)} are not finite" if len(bad) > 1 else ""
    return [
        CheckFinding(
            fault_class=fault_classes.NON_FINITE,
            message=f"{first.what} is {first.value} on rank {rank}{more}",
            where=first.where | {"ranks": ranks},
            measured=first.value,
            bound=exactly("finite", "sums of finite numbers are finite"),
        )
    ]


@check(Lane.NUMERICS)
def token_count(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that exactly the planned tokens count in the loss, by step and document, in canary legs too.

    So must the number that the loss returns, by which gradients are divided.
    """
    for step in evidence.finished_steps:
        # A wrong count of documents makes the returned number wrong too; it is a finding of its own only if they are
        # right.
        findings = _documents(evidence, step) + _step(evidence, step) or _returned(evidence, step)
        if findings:
            return findings  # later steps only repeat the first
    legs = (leg for leg in evidence.legs.values() if leg.leg.model)
    return next((findings for leg in legs if (findings := _leg(evidence, leg))), [])


def _leg(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    """Compare documents of a canary leg; the canary itself judges tokens outside documents."""
    for document in leg.leg.documents:
        expected, loss = document.loss_tokens, leg.losses.get(document.index)
        tokens = loss.tokens if loss else 0
        if tokens != expected:
            where = leg.positions[document.index].where(leg.leg.name, evidence.last_stage) | {
                "document": document.index
            }
            fault_class = (
                fault_classes.TRUNCATION if document.original_length > document.length else fault_classes.TOKEN_COUNT
            )
            message = (
                f"loss tokens of document {document.index} in canary leg {leg.leg.name}: {tokens}, expected {expected}"
            )
            return [_count_finding(message, fault_class, where, tokens, expected)]
    expected = sum(batch.loss_tokens for replica in leg.plan for batch in replica)
    # The check `padding` says of its own leg what this one would say less exactly.
    if leg.leg.canary != "padding" and leg.token_count != expected:
        where = {"stage": evidence.last_stage, "leg": leg.leg.name, "step": 0}
        message = f"loss tokens in canary leg {leg.leg.name}: {leg.token_count}, expected {expected}"
        return [_count_finding(message, fault_classes.TOKEN_COUNT, where, leg.token_count, expected)]
    return []


def _documents(evidence: CellEvidence, step: int) -> list[CheckFinding]:
    losses = evidence.document_losses[step]
    expected = {
        placed.document.index: placed.document.loss_tokens
        for replica in evidence.plan[step]
        for truth in replica
        for placed in truth.batch.placed
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
    tokens, expected_tokens = losses.get(document, none).tokens, expected.get(document, 0)
    more = f"; {len(wrong)} of {len(expected)} documents are wrong" if len(wrong) > 1 else ""
    home = evidence.document_positions[step].get(document)
    truncated = home is not None and home.truncated and len(wrong) == 1
    name = f"loss tokens of document {document} in step {step}"
    where = {"stage": evidence.last_stage, "document": document, "step": step}
    fault_class = fault_classes.TRUNCATION if truncated else _class_of_counts(evidence, step, tokens, expected_tokens)
    return [
        _count_finding(
            f"{name}: {tokens}, expected {expected_tokens} by the packing plan{more}",
            fault_class,
            where,
            tokens,
            expected_tokens,
        )
    ]


def _step(evidence: CellEvidence, step: int) -> list[CheckFinding]:
    expected = sum(truth.batch.loss_tokens for replica in evidence.plan[step] for truth in replica)
    counts = [
        (record.rank, recorded.token_count) for record, recorded in evidence.step_records(step, pp=evidence.last_stage)
    ]
    for rank, tokens in [count for count in counts if count[1] is not None] or counts[:1]:
        if tokens != expected:
            where = {"stage": evidence.last_stage, "rank": rank, "step": step}
            message = f"loss tokens of step {step} on rank {rank}: {tokens}, expected {expected} by the packing plan"
            return [
                _count_finding(message, _class_of_counts(evidence, step, tokens, expected), where, tokens, expected)
            ]
    return []


def _returned(evidence: CellEvidence, step: int) -> list[CheckFinding]:
    config = evidence.cell.config
    expected = counted_tokens(evidence, step) * (config.layout.cp if config.path.loss_on_every_context_rank else 1)
    for tp, tokens in enumerate(returned_tokens(evidence, step)):
        if tokens is None and (config.path.counted != "labels" or config.trainer == "skyrl"):
            if findings := _divided(evidence, step, tp):
                return findings
            continue
        if tokens == expected and config.path.counted:
            continue
        name = _ratio_of_counts(evidence, step, tokens, expected)
        number = "no number of tokens" if tokens is None else f"{tokens:g} tokens"
        wanted = f"{expected:g} by the packing plan" if config.path.counted else "none, since it is divided already"
        message = f"the losses of step {step} return {number} on all ranks, expected {wanted}"
        message += f"; the ratio is {name}" if name else ""
        where = {"stage": evidence.last_stage, "tp": tp, "step": step} | ({"ratio": name} if name else {})
        return [_count_finding(message, _class_of_counts(evidence, step, tokens, expected), where, tokens, expected)]
    return []


def _divided(evidence: CellEvidence, step: int, tp: int) -> list[CheckFinding]:
    """Compare a loss that is divided before it is returned with its own losses and the plan's number of tokens.

    Megatron's schedule multiplies it by cp and divides it by the micro-batches, and without calculate_per_token_loss
    DDP averages over dp and cp (0.19: schedules.forward_step_calc_loss, finalize_model_grads). Upstream's trainers
    scale it by their own rules, and their reports are judged.
    """
    config, layout = evidence.cell.config, evidence.layout
    seen = [recorded for _, recorded in evidence.step_records(step, pp=evidence.last_stage, tp=tp)]
    returned = [recorded.returned_loss for recorded in seen if recorded.returned_loss is not None]
    loss_sum, tokens = seen[0].loss_sum if seen else None, counted_labels(evidence, step)
    if not config.trained_by_harness or loss_sum is None or not tokens or not all(map(math.isfinite, returned)):
        return []
    scale = len(evidence.plan[step][0]) / layout.cp
    scale *= 1 if config.options.calculate_per_token_loss else layout.dp * layout.cp
    total = math.fsum(returned)
    # On a context rank it is that of whole rows, or of its own slots; only gradients tell whether it counts once.
    expected = min((loss_sum / tokens * scale * times for times in (1, layout.cp)), key=lambda one: abs(total - one))
    if not beyond(distance(total, expected, _FP32_SUM), _FP32_SUM):
        return []
    by = tokens * expected / total if total else math.inf
    message = (
        f"the losses of step {step} return {total:.9g} on all ranks, expected {expected:.9g}: the sum of the losses of "
        f"its tokens seems divided by {by:.6g}, and {tokens} tokens count by the packing plan"
    )
    where = {"stage": evidence.last_stage, "tp": tp, "step": step}
    return [_count_finding(message, fault_classes.TOKEN_COUNT, where, by, tokens)]


def _ratio_of_counts(evidence: CellEvidence, step: int, tokens: float | None, expected: float) -> str | None:
    return ratio_name(tokens / expected, factors_of(evidence, step), screen=0.0) if tokens and expected else None


def _class_of_counts(evidence: CellEvidence, step: int, tokens: float | None, expected: float) -> str:
    name = _ratio_of_counts(evidence, step, tokens, expected)
    return f"{fault_classes.NORMALISATION}: {name}" if name else fault_classes.TOKEN_COUNT


def _count_finding(
    message: str, fault_class: str, where: dict[str, Any], tokens: float | None, expected: float
) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_class,
        message=message,
        where=where,
        measured=tokens,
        bound=exactly(expected, "the packing plan"),
    )


@check(Lane.NUMERICS)
def activations(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that each layer's output per document (step 0) equals the reference's; name the first that differs."""
    if evidence.reference is None or not evidence.fingerprinted:
        return []
    first_off = first_layer_off(evidence, evidence.reference)
    return [] if first_off is None else [_activation_finding(evidence, evidence.reference, first_off)]


def _activation_finding(evidence: CellEvidence, control: CellEvidence, first_off: LayerOff) -> CheckFinding:
    bound, layout, layers = evidence.tolerances.activation, evidence.layout, evidence.cell.config.model.spread
    layer, wrong, off = first_off
    document = wrong[0]
    token = first_token_off(evidence, control, document)
    edges = localise.of_layer(layout, layers, layer) + token_boundaries(evidence, document, token)
    stage = layout.stage_of_layer(layers, layer) if layer else 0
    value = "not recorded" if math.isinf(off[document]) else f"off by {off[document]:.3g} > {bound_text(bound)}"
    where = {"stage": stage, "layer": layer, "step": 0, "document": document, "documents": wrong}
    where |= {"token": token} if token is not None else {}
    home = evidence.document_positions[0].get(document)
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    after = f"layer {layer} on stage {stage}" if layer else "the embedding on stage 0"
    at = f" from token {token} on" if token is not None else ""
    return CheckFinding(
        fault_class=_class_of_outputs(evidence, first_off),
        message=f"activations first differ after {after}: document {document}{at} {value}; "
        f"{len(wrong)} of {len(off)} documents differ there{edges.text}",
        where=where | edges.keys,
        measured=off[document],
        bound=stated(bound),
    )


def _class_of_outputs(evidence: CellEvidence, first_off: LayerOff) -> str:
    pattern = _documents_pattern(evidence, first_off.documents, 0)
    # The embedding does not mix tokens: it can be wrong only by what it was given, or where.
    if first_off.layer == 0 and pattern != fault_classes.TRUNCATION:
        return fault_classes.CP_LAYOUT if evidence.layout.cp > 1 else fault_classes.TOKEN_CONTENT
    hop = localise.hop_before(evidence.layout, evidence.cell.config.model.spread, first_off.layer)
    return fault_classes.STAGE_BOUNDARY if hop and pattern == fault_classes.UNKNOWN else pattern


_NONE = DocumentLoss(loss_sum=0.0, tokens=0)


@check(Lane.NUMERICS)
def document_loss(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the loss of every document equals the reference's; at step 0, name the first token that differs."""
    control = evidence.reference
    if control is None:
        return []
    for step in evidence.finished_steps:
        if step not in control.document_losses:
            continue
        if step and not evidence.same_rows:
            break  # different gradients have moved the weights
        if (bound := _bound(evidence, step)) is None:
            break  # rounding decides
        off = _off(evidence, control, step, bound)
        wrong = sorted(document for document, value in off.items() if beyond(value, bound))
        if wrong:
            return [_loss_finding(evidence, control, step, wrong, off, bound)]
    return []


def _bound(evidence: CellEvidence, step: int) -> Bound | None:
    """Return the bound at a step: after step 0, as weights have moved, the looser of the document's and the step's."""
    at_step, of_step = evidence.bound("document_loss", step), evidence.bound("step_loss", step)
    if step == 0 or at_step is None or of_step is None:
        return at_step if step == 0 else None
    return looser(at_step, of_step)


def _losses(evidence: CellEvidence, control: CellEvidence, step: int) -> dict[int, tuple[float, float]]:
    """Return document -> (loss sum, the control's loss sum); 0 where there is none."""
    losses, expected = evidence.document_losses[step], control.document_losses[step]
    return {
        document: (losses.get(document, _NONE).loss_sum, expected.get(document, _NONE).loss_sum)
        for document in sorted({*losses, *expected})
    }


def _off(evidence: CellEvidence, control: CellEvidence, step: int, bound: Bound) -> dict[int, float]:
    """Return document -> distance from the control; values that are not finite are left to `finiteness`."""
    return {
        document: distance(measured, expected, bound)
        for document, (measured, expected) in _losses(evidence, control, step).items()
        if math.isfinite(measured)
    }


def _loss_finding(
    evidence: CellEvidence, control: CellEvidence, step: int, wrong: list[int], off: dict[int, float], bound: Bound
) -> CheckFinding:
    document = wrong[0]
    loss, expected = _losses(evidence, control, step)[document]
    home = evidence.document_positions[step].get(document)
    place = f" (micro-batch {home.micro_batch} of replica {home.dp})" if home else ""
    token = first_token_off(evidence, control, document) if step == 0 else None
    ratio = _ratio(evidence, control, step)
    # A factor common to all documents does not point to one token.
    edges = _boundaries(evidence, control, document, None if ratio else token) if step == 0 else localise.NOTHING
    where = {"stage": evidence.last_stage, "step": step, "document": document, "documents": wrong}
    where |= {"token": token} if token is not None else {}
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    at = f", from token {token} on" if token is not None else ""
    named = f"; the ratio is {ratio} on all" if ratio else ""
    return CheckFinding(
        fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else _documents_pattern(evidence, wrong, step),
        message=f"loss sum of document {document}{place} in step {step}: {loss:.9g}, "
        f"{evidence.origin} {expected:.9g}, off by {off[document]:.3g} > {bound_text(bound)}{at}{named}; "
        f"{len(wrong)} of {len(off)} documents differ{edges.text}",
        where=where | ({"ratio": ratio} if ratio else {}) | edges.keys,
        measured=off[document],
        bound=stated(bound),
    )


def _boundaries(evidence: CellEvidence, control: CellEvidence, document: int, token: int | None) -> Boundaries:
    """Return boundaries at the token, and the output layer if no layer before it is off."""
    layers_right = evidence.fingerprinted and first_layer_off(evidence, control) is None
    edges = localise.of_output() if layers_right else localise.NOTHING
    return edges + token_boundaries(evidence, document, token)


def _ratio(evidence: CellEvidence, control: CellEvidence, step: int) -> str | None:
    """Return the factor by which all documents' losses are off, if any; documents per pack differ between documents."""
    common = factors_of(evidence, step)
    pairs = []
    for document, (loss, expected) in _losses(evidence, control, step).items():
        home = evidence.document_positions[step].get(document)
        if expected and math.isfinite(loss) and home is not None:
            members = len(evidence.plan[step][home.dp][home.micro_batch].batch.placed) if evidence.packed else 1
            # The number of documents is that of this document's pack, not the step's.
            own = {name: size for name, size in common.items() if name != DOCUMENTS}
            pairs.append((loss / expected, own | ({DOCUMENTS: float(members)} if members > 1 else {})))
    return common_ratio(pairs, evidence.tolerances.ratio_screen)


@check(Lane.NUMERICS)
def repeated_document(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that a document that repeats another has the same loss, wherever each is packed; needs no control.

    Not where experts drop tokens beyond their capacity, which depends on the other documents of a row.
    """
    if evidence.cell.config.model.drops:
        return []
    for step in evidence.finished_steps:
        losses = evidence.document_losses[step]
        bound = evidence.own_bound("repeated_document", step)
        for copy, original in _copies(evidence, step):
            if copy not in losses or original not in losses:
                continue  # token_count names absent documents
            loss, original_loss = losses[copy].loss_sum, losses[original].loss_sum
            if (
                math.isfinite(loss)
                and math.isfinite(original_loss)
                and beyond(distance(loss, original_loss, bound), bound)
            ):
                return [_repeated_finding(evidence, step, copy, original)]
    return []


def _copies(evidence: CellEvidence, step: int) -> list[tuple[int, int]]:
    """Return (copy, original) of the step's documents."""
    documents = evidence.cell.config.documents_of(step)
    return [(document.index, document.copy_of) for document in documents if document.copy_of is not None]


def _repeated_finding(evidence: CellEvidence, step: int, copy: int, original: int) -> CheckFinding:
    bound = evidence.own_bound("repeated_document", step)
    losses = evidence.document_losses[step]
    loss, original_loss = losses[copy].loss_sum, losses[original].loss_sum
    measured = distance(loss, original_loss, bound)
    return CheckFinding(
        fault_class=_documents_pattern(evidence, [copy], step),
        message=f"document {copy} repeats document {original}, but in step {step} their loss sums are {loss:.9g} and "
        f"{original_loss:.9g}, off by {measured:.3g} > {bound_text(bound)}",
        where={"stage": evidence.last_stage, "step": step, "document": copy, "original": original},
        measured=measured,
        bound=stated(bound),
    )


_NO_LOSS = DocumentLoss(loss_sum=0.0, tokens=0)


@check(Lane.NUMERICS)
def mtp_loss(evidence: CellEvidence) -> list[CheckFinding]:
    """Check multi-token prediction at step 0: which tokens count per document and depth, and the reference's loss.

    At depth d the labels of a document count that did but for its first d: for its last d slots, the predicted token is
    beyond it.
    """
    mtp = evidence.cell.config.model.mtp
    if mtp is None or not evidence.first_step_whole:
        return []
    for depth in range(1, mtp.layers + 1):
        losses = mtp_losses(evidence, depth)
        wrong = {
            document: tokens
            for document, tokens in _tokens(evidence, depth).items()
            if losses.get(document, _NO_LOSS).tokens != tokens
        }
        if wrong:
            return [_tokens_finding(evidence, depth, losses, wrong)]
        if evidence.reference is not None:
            findings = _against(evidence, evidence.reference, depth, losses)
            if findings:
                return findings
    return []


def mtp_losses(evidence: CellEvidence, depth: int) -> dict[int, DocumentLoss]:
    """Return document (or PAD) -> loss over all ranks; tp ranks see the same tokens, so only the first counts."""
    whole: dict[int, DocumentLoss] = {}
    for _, record in sorted(evidence.records.items()):
        if record.place.tp:
            continue
        for head in record.mtp:
            for document, part in head.documents.items() if head.depth == depth else ():
                old = whole.get(document, _NO_LOSS)
                whole[document] = DocumentLoss(loss_sum=old.loss_sum + part.loss_sum, tokens=old.tokens + part.tokens)
    return whole


def _tokens(evidence: CellEvidence, depth: int) -> dict[int, int]:
    """Return document -> number of tokens that must count; 0 for PAD."""
    placed = (member for replica in evidence.plan[0] for truth in replica for member in truth.batch.placed)
    return {PAD: 0, **{member.document.index: sum(member.document.loss_mask[depth:]) for member in placed}}


def _tokens_finding(
    evidence: CellEvidence, depth: int, losses: dict[int, DocumentLoss], wrong: dict[int, int]
) -> CheckFinding:
    # A document says more than padding, so padding comes last.
    document = min(wrong, key=lambda index: (index == PAD, index))
    count, expected = losses.get(document, _NO_LOSS).tokens, wrong[document]
    kind = "slots outside documents" if document == PAD else f"tokens of document {document}"
    documents = sorted(wrong.keys() - {PAD})
    more = f"; {counted(len(documents), 'document')} differ" if len(documents) > (document != PAD) else ""
    return CheckFinding(
        fault_class=fault_classes.PREDICTION,
        message=f"{count} {kind} count at prediction depth {depth}, not {expected}{more}",
        where=_where(evidence, depth, document, documents),
        measured=count,
        bound=expected,
    )


def _against(
    evidence: CellEvidence, reference: CellEvidence, depth: int, losses: dict[int, DocumentLoss]
) -> list[CheckFinding]:
    bound, expected = evidence.tolerances.document_loss, mtp_losses(reference, depth)
    off = {
        document: distance(part.loss_sum, expected.get(document, _NO_LOSS).loss_sum, bound)
        for document, part in losses.items()
    }
    wrong = sorted(document for document, value in off.items() if beyond(value, bound))
    if not wrong:
        return []
    document = wrong[0]
    message = (
        f"loss sum of document {document} at prediction depth {depth}: {losses[document].loss_sum:.9g}, "
        f"{evidence.origin} {expected.get(document, _NO_LOSS).loss_sum:.9g}, off by {off[document]:.3g} > "
        f"{bound_text(bound)}; {len(wrong)} of {len(off)} documents differ"
    )
    return [
        CheckFinding(
            fault_class=fault_classes.PREDICTION,
            message=message,
            where=_where(evidence, depth, document, wrong),
            measured=off[document],
            bound=bound.value,
        )
    ]


def _where(evidence: CellEvidence, depth: int, document: int, documents: list[int]) -> dict[str, object]:
    where: dict[str, object] = {"stage": evidence.last_stage, "step": 0, "depth": depth}
    if document != PAD:
        where["document"] = document
    home = evidence.document_positions[0].get(document)
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    return where | {"documents": documents}


@check(Lane.NUMERICS)
def step_loss(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the loss of every step (sum over its unmasked labels, all ranks) equals the reference's.

    Where that cannot be compared, it is still the sum of the documents' losses; in canary legs all tensor-parallel
    ranks have the same.
    """
    wrong, compared = [], set[int]()
    for step, expected in step_losses(evidence.reference).items() if evidence.reference else ():
        if step and not evidence.same_rows:
            break  # different gradients have moved the weights
        if (bound := evidence.bound("step_loss", step)) is None:
            break  # rounding decides
        compared.add(step)
        for rank, loss in _recorded(evidence, step):
            if loss is None or (math.isfinite(loss) and beyond(distance(loss, expected, bound), bound)):
                wrong.append((step, rank, loss, expected, bound))
    if not wrong:
        return _other_sums(evidence, compared)
    step, rank, loss, expected, bound = wrong[0]
    steps = sorted({step for step, *_ in wrong})
    ratio = None
    if loss is not None and expected:
        ratio = ratio_name(loss / expected, factors_of(evidence, step), evidence.tolerances.ratio_screen)
    measured = math.nan if loss is None else distance(loss, expected, bound)
    named = f"; the ratio is {ratio}" if ratio else ""
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.UNKNOWN,
            message=f"loss sum of step {step} on rank {rank}: {_text(loss)}, {evidence.origin} {expected:.9g}, off by "
            f"{measured:.3g} > {bound_text(bound)}{named}; {len(steps)} of {len(evidence.steps)} steps differ",
            where={"stage": evidence.last_stage, "rank": rank, "step": step} | ({"ratio": ratio} if ratio else {}),
            measured=measured,
            bound=stated(bound),
        )
    ]


def _other_sums(evidence: CellEvidence, compared: Collection[int]) -> list[CheckFinding]:
    """Return the first loss sum of a rank of the last stage that differs from what it must equal in its own cell."""
    for rank, name, where, loss, of, expected in (*_step_sums(evidence, compared), *_leg_sums(evidence)):
        if math.isfinite(loss) and math.isfinite(expected) and beyond(distance(loss, expected, _FP32_SUM), _FP32_SUM):
            return [
                CheckFinding(
                    fault_class=fault_classes.UNKNOWN,
                    message=f"loss sum of {name} on rank {rank}: {loss:.9g}, {of} {expected:.9g}",
                    where={"stage": evidence.last_stage, "rank": rank, **where},
                    measured=loss,
                    bound=expected,
                )
            ]
    return []


_Sum = tuple[int, str, dict[str, Any], float, str, float]  # rank, of what, where, found, what is right, right


def _step_sums(evidence: CellEvidence, compared: Collection[int]) -> Iterator[_Sum]:
    """Yield sums of steps not `compared` with a reference, over all ranks, as the last stage's ranks have them."""
    for step in evidence.document_losses.keys() - compared if evidence.reference else ():
        expected = sum(loss.loss_sum for loss in evidence.document_losses[step].values())
        for rank, loss in _recorded(evidence, step):
            if loss is not None:
                yield rank, f"step {step}", {"step": step}, loss, "its documents add up to", expected


def _leg_sums(evidence: CellEvidence) -> Iterator[_Sum]:
    """Yield sums of the slots of one rank, which are those of its whole tensor-parallel group."""
    for name, leg in evidence.legs.items():
        for rank, recorded in sorted(leg.seen.items()) if leg.leg.model else ():
            at = evidence.layout.coordinates(rank)
            if at.pp == evidence.last_stage and at.tp:
                first = evidence.layout.rank(replace(at, tp=0))
                expected = leg.seen[first].loss_sum
                yield (
                    rank,
                    f"canary leg {name}",
                    {"leg": name, "step": 0},
                    recorded.loss_sum,
                    f"on rank {first}",
                    expected,
                )


def _recorded(evidence: CellEvidence, step: int) -> list[tuple[int, float | None]]:
    """Return (rank, loss sum) of the last stage's ranks that recorded one; if none did, the first rank with None."""
    losses = [
        (record.rank, recorded.loss_sum) for record, recorded in evidence.step_records(step, pp=evidence.last_stage)
    ]
    return [loss for loss in losses if loss[1] is not None] or losses[:1]


def _text(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.9g}"


def step_losses(evidence: CellEvidence) -> dict[int, float]:
    """Return step -> loss sum of the first rank of the last stage that recorded one; other steps are left out."""
    losses: dict[int, float] = {}
    for step in evidence.finished_steps:
        for _, recorded in evidence.step_records(step, pp=evidence.last_stage):
            if recorded.loss_sum is not None:
                losses.setdefault(step, recorded.loss_sum)
    return losses


def _documents_pattern(evidence: CellEvidence, documents: Collection[int], step: int) -> str:
    """Return TRUNCATION if all were truncated; else CP_LAYOUT if cp > 1.

    If none is first in its stream: LEAK, since attention is causal, or POSITIONS if canary isolation saw no leak.
    """
    homes = [
        evidence.document_positions[step][document]
        for document in documents
        if document in evidence.document_positions[step]
    ]
    if homes and all(home.truncated for home in homes):
        return fault_classes.TRUNCATION
    if homes and evidence.packed and not any(home.first for home in homes):
        return fault_classes.POSITIONS if _isolated(evidence) else fault_classes.LEAK
    return fault_classes.CP_LAYOUT if evidence.layout.cp > 1 else fault_classes.UNKNOWN


def _isolated(evidence: CellEvidence) -> bool:
    """Return whether canary isolation ran, and its changes of single documents changed no other document's loss."""
    legs = [leg for name, leg in evidence.legs.items() if name.startswith("isolation")]
    bound = exact_on_cpu(evidence, evidence.own.document_loss)
    return bool(legs) and not any(changed_losses(evidence, leg, bound, skip=leg.leg.changed) for leg in legs)
