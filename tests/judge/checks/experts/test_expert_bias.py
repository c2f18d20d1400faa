from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.run.records import ExpertBiasSeen, OracleRecord, RankRecord
from harness.features.experts import checks
from harness.features.experts.checks import routers
from harness.features.experts.config import MoeConfig
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.parts import LAYERS, with_routers

RATE = 0.01


def biased(**layout: int) -> CellEvidence:
    """A cell whose ranks recorded the biases that the tokens of step 0 give, and the same ones after step 1."""
    evidence = with_routers(aux_loss="none", **layout)
    model = replace(
        evidence.cell.config.model, moe=MoeConfig(score_function="sigmoid", expert_bias=True, bias_rate=RATE)
    )
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, model=model))
    counts = {layer: [0, 0, 0, 0] for layer in range(1, LAYERS + 1)}
    for router in routers(evidence):
        for row in (*router.real, *router.padding):
            counts[router.layer] = [a + b for a, b in zip(counts[router.layer], row.counts)]
    for record in evidence.records.values():
        for step in range(2):
            for layer in evidence.layout.layers(LAYERS, record.place.pp):
                mean = sum(counts[layer]) / 4
                values = [RATE * ((one < mean) - (one > mean)) for one in counts[layer]]
                record.expert_biases.append(ExpertBiasSeen(step=step, layer=layer, values=values))
    return evidence


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"cp": 2}, {"pp": 2}, {"dp": 2}], ids=str)
def test_biases_that_follow_the_tokens_give_no_finding(layout: dict[str, int]) -> None:
    evidence = biased(**layout)
    assert checks.expert_bias(evidence) == []
    assert any(value for seen in evidence.records[0].expert_biases for value in seen.values)


def test_a_rank_with_another_bias_is_named() -> None:
    evidence = biased(dp=2)
    evidence.records[1].expert_biases[3].values[2] += 1e-9
    (finding,) = checks.expert_bias(evidence)
    assert "after step 1 on rank 1" in finding.message and "rank 0 has" in finding.message
    assert (finding.where["layer"], finding.where["step"], finding.where["dp"]) == (2, 1, 1)


def test_upstream_rounds_counts_to_bf16() -> None:
    evidence = biased()
    for seen in evidence.records[0].routers:
        seen.kept = [67, 70, 82, 60]  # their mean is 69.75, in bf16 70
    for record in evidence.records.values():
        for one in record.expert_biases:
            one.values = [RATE, 0.0, -RATE, RATE]
    assert len(checks.expert_bias(evidence)) == 1
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, dtype="bf16"))
    assert checks.expert_bias(evidence) == []
    evidence.records[0].expert_biases[0].values[0] = 0.0
    assert len(checks.expert_bias(evidence)) == 1


def test_biases_that_are_the_same_everywhere_but_not_those_of_the_tokens_are_found() -> None:
    evidence = biased(dp=2)
    for record in evidence.records.values():
        record.expert_biases[0].values = [-value for value in record.expert_biases[0].values]
    (finding,) = checks.expert_bias(evidence)
    assert "biases of the experts of layer 1 after step 0" in finding.message
    assert "their tokens give" in finding.message


def test_tokens_that_experts_drop_do_not_count() -> None:
    evidence = biased()
    for seen in evidence.records[0].routers:
        seen.kept = [1, 1, 1, 1]
    (finding,) = checks.expert_bias(evidence)
    assert finding.bound == [0.0, 0.0, 0.0, 0.0]


def test_biases_of_later_steps_are_those_of_the_oracle() -> None:
    evidence = biased()
    found = RankRecord(cell="", rank=0, place=evidence.records[0].place)
    found.expert_biases = [replace(one) for one in evidence.records[0].expert_biases]
    evidence = replace(evidence, oracle=OracleRecord(cell=evidence.cell.id, built=[], record=found))
    assert checks.expert_bias(evidence) == []
    found.expert_biases[2].values = [0.5] * 4
    (finding,) = checks.expert_bias(replace(evidence))
    assert "after step 1" in finding.message and "the oracle has 0.5" in finding.message


def test_models_without_biases_are_left_alone() -> None:
    assert checks.expert_bias(with_routers()) == []
