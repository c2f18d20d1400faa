from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome
from tests.judge.simulator import config_of, evidence_for, judge


@pytest.mark.parametrize("layout", [{"tp": 2, "pp": 2, "cp": 2}, {"tp": 2, "sp": False}, {"dp": 2, "cp": 2}], ids=str)
@pytest.mark.parametrize("data_path", ["reference", "unpacked"])
def test_shares_of_the_ranks_add_up_to_the_reference(layout: dict[str, int], data_path: str) -> None:
    evidence = evidence_for(config_of(data_path, **layout))
    control = evidence.control
    assert control is not None
    for step in (0, 1):
        assert set(evidence.document_losses[step]) == set(range(8))
        for document, loss in evidence.document_losses[step].items():
            right = control.document_losses[step][document]
            assert loss.tokens == right.tokens
            assert loss.loss_sum == pytest.approx(right.loss_sum, rel=1e-12)
    assert list(evidence.gradients) == list(control.gradients)
    assert list(evidence.activations) == [0, 1, 2, 3, 4]
    for layer, documents in evidence.activations.items():
        for document, fingerprint in documents.items():
            right_print = control.activations[layer][document]
            assert fingerprint.norm_sq == pytest.approx(right_print.norm_sq, rel=1e-12)


def test_a_step_that_one_rank_of_the_last_stage_did_not_finish_is_not_finished() -> None:
    evidence = evidence_for(config_of("sft", pp=2, cp=2))
    evidence.records[3].steps.pop()
    assert evidence.finished_steps == [0]


def test_positions_of_documents() -> None:
    homes = evidence_for(config_of("sft", dp=2)).document_positions[0]
    assert set(homes) == set(range(8))
    assert {home.dp for home in homes.values()} == {0, 1}
    assert [document for document, home in homes.items() if home.truncated] == [7]
    assert homes[0].first and not homes[1].first


def test_every_unpacked_document_is_first_in_its_row() -> None:
    homes = evidence_for(config_of("unpacked", micro_batch_size=2)).document_positions[0]
    assert all(home.first for home in homes.values())


@pytest.mark.parametrize("fingerprints", [True, False])
def test_gradients_and_activations_are_required_only_with_fingerprints(fingerprints: bool) -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    assert evidence.control is not None
    for item in (evidence, evidence.control):
        item.config = replace(item.cell.config, fingerprints=fingerprints)
        item.cell = replace(item.cell, config=item.config)
        for record in item.records.values() if item is evidence or not fingerprints else ():
            record.parameters, record.activations = [], []
            record.optimizer = record.optimizer if fingerprints else None
    assert evidence.fingerprinted == fingerprints
    verdict = judge(evidence)
    assert verdict.outcome is (Outcome.ERROR if fingerprints else Outcome.PASS)
    missed = {"parameter_gradients", "activations"} if fingerprints else set()
    assert {finding.check for finding in verdict.findings} == missed
