from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.packing.documents import DocumentsConfig
from harness.judge.checks import canaries
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, evidence_for, leg_of, place_of, the_only_finding


def test_the_smallest_change_of_an_unchanged_document_names_victim_and_culprit() -> None:
    evidence = evidence_for(config_of("sft", tp=2, cp=2, canaries=("isolation",)))
    (record,) = at(evidence, tp=0, cp=1)
    leg = evidence.legs["isolation-middle"]
    (culprit,) = leg.leg.changed
    victim = [item.document.index for item in leg.plan[0][0].placed][-1]
    leg_of(record, "isolation-middle").documents[victim].loss_sum *= 1 + 1e-15
    finding = the_only_finding(evidence, "isolation")
    assert place_of(finding, "document", "culprit", "leg") == (victim, culprit, "isolation-middle")
    assert finding.fault_class == fault_classes.LEAK
    assert f"document {culprit} leaks into document {victim}" in finding.message
    assert "the loss of 1 of 4 documents with the same tokens changed" in finding.message


def test_on_a_gpu_the_bound_is_that_of_document_losses() -> None:
    evidence = evidence_for(config_of("sft", canaries=("isolation",)))
    evidence.records[0].environment["device"] = "NVIDIA H200"
    seen = leg_of(evidence.records[0], "isolation").documents[1]
    seen.loss_sum *= 1 + 1e-7
    assert canaries.isolation(evidence) == []
    seen.loss_sum *= 1.01
    del evidence.__dict__["legs"]  # cached: read it again
    [finding] = canaries.isolation(evidence)
    assert finding.bound["value"] == evidence.tolerances.document_loss.value


def test_a_leg_that_one_rank_did_not_finish_is_not_judged() -> None:
    evidence = evidence_for(config_of("sft", tp=2, canaries=("isolation",)))
    leg_of(evidence.records[0], "isolation").documents[1].loss_sum += 1
    evidence.records[1].legs = []
    assert "isolation" not in evidence.legs


@pytest.mark.parametrize(("length", "found"), [(3, 0), (4, 1)])
def test_a_changed_document_may_keep_its_loss_by_chance_while_it_is_shorter_than_four_tokens(
    length: int, found: int
) -> None:
    documents = DocumentsConfig(mode="file", lengths=(length, 20, 20))
    evidence = evidence_for(replace(config_of("sft", canaries=("isolation",)), documents=documents))
    changed = [item for item in evidence.legs["isolation"].leg.documents if item.index == 0]
    assert [(item.length, item.index in evidence.legs["isolation"].leg.changed) for item in changed] == [(length, True)]
    before = evidence.records[0].steps[0].documents[0].loss_sum
    leg_of(evidence.records[0], "isolation").documents[0].loss_sum = before
    assert len(canaries.isolation(evidence)) == found
