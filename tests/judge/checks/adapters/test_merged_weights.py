from __future__ import annotations

import math

import pytest

from harness.core.run.tensor_records import Fingerprint
from harness.features.adapters import checks
from tests.judge.checks.adapters.of_adapters import LAYER, adapted_cell
from tests.judge.simulator import config_of, evidence_for


def test_merged_shards_that_add_up_to_the_merged_weight_of_the_control_pass() -> None:
    assert checks.merged_weights(adapted_cell()) == []


def test_a_model_without_adapters_is_not_checked() -> None:
    assert checks.merged_weights(evidence_for(config_of())) == []


@pytest.mark.parametrize("field", ["before", "after"])
def test_a_wrong_shard_differs_from_the_control(field: str) -> None:
    evidence = adapted_cell()
    for rank in (1, 3):  # both replicas
        setattr(evidence.records[rank].merged[0], field, Fingerprint(norm_sq=2.0, projections=[0.9, -1.0]))
    (finding,) = checks.merged_weights(evidence)
    assert finding.where == {"parameter": f"{LAYER}.weight", "layer": 1}
    assert finding.measured is not None and finding.measured > 0.01
    assert ("initial weights" if field == "before" else "after the last step") in finding.message


def test_copies_of_a_merged_weight_agree() -> None:
    evidence = adapted_cell()
    evidence.records[3].merged[0].before = Fingerprint(norm_sq=2.0, projections=[0.9, -1.0])
    (finding,) = checks.merged_weights(evidence)
    assert "on rank 3, it differs from its copy on rank 1" in finding.message


@pytest.mark.parametrize("off", [0.5, math.nan])
def test_a_merge_that_cell_and_control_have_wrong_shows_in_the_output(off: float) -> None:
    evidence = adapted_cell()
    evidence.records[2].merged[0].output_off = off
    (finding,) = checks.merged_weights(evidence)
    assert "on rank 2, its output differs from that of the layer with its adapter" in finding.message
