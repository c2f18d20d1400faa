"""The check attention_mask, on records of a simulated cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.model import ModelConfig
from harness.core.run.records import LayerSeen
from harness.judge.checks import packed_params
from tests.judge.simulator import config_of, evidence_for


@pytest.mark.parametrize("given", ["causal", "padding_causal", "causal_bottom_right"])
def test_causal_types_mean_the_same(given: str) -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    for record in evidence.records.values():
        record.layers = [replace(seen, mask=given) for seen in record.layers]
    assert packed_params.attention_mask(evidence) == []


@pytest.mark.parametrize("given", ["no_mask", "padding", "arbitrary", None])
@pytest.mark.parametrize("recomputed", [False, True])
def test_another_type_is_found_at_its_layer(given: str | None, recomputed: bool) -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    last = evidence.records[1]
    last.recomputed = [replace(seen) for seen in last.layers]
    _change(last.recomputed if recomputed else last.layers, mask=given)
    (found,) = packed_params.attention_mask(evidence)
    assert found.measured == f"mask type {given}"
    assert (found.where["stage"], found.where["layer"]) == (1, evidence.cell.config.model.layers)


def test_a_bias_of_the_scores_is_found() -> None:
    evidence = evidence_for(config_of("unpacked"))
    _change(evidence.records[0].layers, biased=True)
    (found,) = packed_params.attention_mask(evidence)
    assert found.measured == "mask type causal, with a bias of the scores"


def test_recurrent_layers_are_given_none() -> None:
    model = ModelConfig(layers=4, pattern="MM**")
    evidence = evidence_for(replace(config_of("reference"), model=model))
    given = {seen.layer: seen.mask for seen in evidence.records[0].layers}
    assert given == {1: None, 2: None, 3: "causal", 4: "causal"}
    assert packed_params.attention_mask(evidence) == []


def _change(layers: list[LayerSeen], **fields: object) -> None:
    """Change what the last layer was given for the first micro-batch."""
    last = max(seen.layer for seen in layers)
    number = next(number for number, seen in enumerate(layers) if seen.layer == last)
    layers[number] = replace(layers[number], **fields)  # type: ignore[arg-type]
