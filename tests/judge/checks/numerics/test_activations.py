from __future__ import annotations

from harness.core.outcomes import Outcome
from harness.judge.checks.outputs import activations
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import at, config_of, evidence_for, judge, place_of


def _shift(evidence: CellEvidence, layer: int, documents: set[int]) -> None:
    """Change the outputs of a layer and all later ones, as a real error does."""
    for record in evidence.records.values():
        for seen in record.activations:
            if seen.layer >= layer:
                for document in documents & set(seen.documents):
                    seen.documents[document].projections[0] += 0.5


def test_the_first_wrong_token_is_known_from_its_loss() -> None:
    evidence = evidence_for(config_of("sft"))
    _shift(evidence, 2, {3})
    for record in evidence.records.values():
        record.steps[0].documents[3].loss_sum += 0.1
        next(token for token in record.steps[0].tokens if token.document == 3).loss += 0.1
    first, second = judge(evidence).findings
    assert (first.check, second.check) == ("activations", "document_loss")
    assert place_of(first, "document", "token", "neighbour") == (3, 0, 2)
    assert first.where["boundaries"] == ["document boundary", "padding"]
    assert "document 3 from token 0 on" in first.message
    assert second.where["boundaries"] == ["document boundary", "padding"]  # not the output layer: a layer is off


def test_a_layer_that_was_not_recorded() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    [record] = at(evidence, pp=1)
    record.activations = [seen for seen in record.activations if seen.layer != 4]
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "record of rank 1: activations: recorded for layers [3], expected for [3, 4]" in verdict.reason
    [finding] = activations(evidence)
    assert place_of(finding, "layer", "stage") == (4, 1)
    assert "not recorded" in finding.message
