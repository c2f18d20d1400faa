"""What a rank of a model with adapters must record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.core.run.records import RankRecord
from harness.judge.required import adapters
from harness.judge.required.expected import Expected
from tests.judge.checks.adapters.of_adapters import LAYER, adapted_cell
from tests.judge.simulator import config_of, evidence_for


def only_first_layer(record: RankRecord) -> None:
    """As if the other layers had no qkv."""
    keep = f"{LAYER}.weight"
    record.frozen = [seen for seen in record.frozen if "linear_qkv" not in seen.name or seen.name == keep]


def problems(change: Callable[[RankRecord], object]) -> list[str]:
    evidence = adapted_cell()
    only_first_layer(evidence.records[0])
    change(evidence.records[0])
    return list(adapters.problems(Expected(evidence), evidence.records[0]))


def test_a_complete_record_has_no_problems() -> None:
    assert problems(lambda record: None) == []


def test_a_model_without_adapters_has_no_frozen_weights() -> None:
    evidence = evidence_for(config_of())
    evidence.records[0].frozen = adapted_cell().records[0].frozen[:1]
    found = list(adapters.problems(Expected(evidence), evidence.records[0]))
    assert found == ["1 frozen and 0 merged weights, and the model has no adapters"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.frozen.clear(), "frozen: recorded for layers [], stage 0 has"),
        (lambda record: setattr(record.frozen[0], "after", ""), "has no digest"),
        (lambda record: record.parameters.clear(), f"parameters: {LAYER} has no adapter that trains"),
        (lambda record: record.merged.clear(), "merged: 0 weights, not 1"),
        (lambda record: setattr(record.merged[0], "after", None), f"merged: {LAYER}.weight: after is None"),
        (lambda record: setattr(record.merged[0], "output_off", None), "output_off None"),
    ],
)
def test_what_is_missing_is_named(change: Callable[[RankRecord], object], said: str) -> None:
    assert any(said in problem for problem in problems(change)), problems(change)
