"""Multi-token prediction at step 0: the right tokens count per document and depth, with the reference's loss.

At depth d the labels of a document count that did but for its first d: for its last d slots, the predicted token is
beyond it.
"""

from __future__ import annotations

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import DocumentLoss
from harness.core.text import counted
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, distance

_NONE = DocumentLoss(loss_sum=0.0, tokens=0)


def check(evidence: CellEvidence) -> list[CheckFinding]:
    mtp = evidence.cell.config.model.mtp
    if mtp is None or not evidence.first_step_whole:
        return []
    for depth in range(1, mtp.layers + 1):
        found = mtp_losses(evidence, depth)
        wrong = {
            document: tokens
            for document, tokens in _tokens(evidence, depth).items()
            if found.get(document, _NONE).tokens != tokens
        }
        if wrong:
            return [_tokens_finding(evidence, depth, found, wrong)]
        if evidence.reference is not None:
            findings = _against(evidence, evidence.reference, depth, found)
            if findings:
                return findings
    return []


def mtp_losses(evidence: CellEvidence, depth: int) -> dict[int, DocumentLoss]:
    """Document (or PAD) -> loss over all ranks; tp ranks see the same tokens, so only the first counts."""
    whole: dict[int, DocumentLoss] = {}
    for _, record in sorted(evidence.records.items()):
        if record.place.tp:
            continue
        for seen in record.mtp:
            for document, part in seen.documents.items() if seen.depth == depth else ():
                old = whole.get(document, _NONE)
                whole[document] = DocumentLoss(loss_sum=old.loss_sum + part.loss_sum, tokens=old.tokens + part.tokens)
    return whole


def _tokens(evidence: CellEvidence, depth: int) -> dict[int, int]:
    """Document -> number of tokens that must count; 0 for PAD."""
    placed = (item for replica in evidence.plan[0] for truth in replica for item in truth.batch.placed)
    return {PAD: 0, **{item.document.index: sum(item.document.loss_mask[depth:]) for item in placed}}


def _tokens_finding(
    evidence: CellEvidence, depth: int, found: dict[int, DocumentLoss], wrong: dict[int, int]
) -> CheckFinding:
    document = min(wrong, key=lambda item: (item == PAD, item))
    count, right = found.get(document, _NONE).tokens, wrong[document]
    kind = "slots outside documents" if document == PAD else f"tokens of document {document}"
    documents = sorted(wrong.keys() - {PAD})
    more = f"; {counted(len(documents), 'document')} differ" if len(documents) > (document != PAD) else ""
    return CheckFinding(
        fault_class=fault_classes.PREDICTION,
        message=f"{count} {kind} count at prediction depth {depth}, not {right}{more}",
        where=_where(evidence, depth, document, documents),
        measured=count,
        bound=right,
    )


def _against(
    evidence: CellEvidence, reference: CellEvidence, depth: int, found: dict[int, DocumentLoss]
) -> list[CheckFinding]:
    bound, right = evidence.tolerances.document_loss, mtp_losses(reference, depth)
    off = {
        document: distance(part.loss_sum, right.get(document, _NONE).loss_sum, bound)
        for document, part in found.items()
    }
    wrong = sorted(document for document, value in off.items() if beyond(value, bound))
    if not wrong:
        return []
    document = wrong[0]
    message = (
        f"loss sum of document {document} at prediction depth {depth}: {found[document].loss_sum:.9g}, "
        f"{evidence.origin} {right.get(document, _NONE).loss_sum:.9g}, off by {off[document]:.3g} > "
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
    home = evidence.homes[0].get(document)
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    return where | {"documents": documents}
