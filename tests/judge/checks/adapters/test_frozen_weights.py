from __future__ import annotations

from harness.core.run.tensor_records import ParameterSeen
from harness.features.adapters import checks
from tests.judge.checks.adapters.of_adapters import FACTORS, adapted_cell
from tests.judge.simulator import config_of, evidence_for


def test_frozen_weights_that_stay_and_adapters_that_train_pass() -> None:
    assert checks.frozen_weights(adapted_cell()) == []


def test_a_model_without_adapters_is_not_checked() -> None:
    assert checks.frozen_weights(evidence_for(config_of())) == []


def test_a_frozen_weight_that_changes_on_one_rank_is_named() -> None:
    evidence = adapted_cell()
    evidence.records[3].frozen[0].after = "2f"
    (finding,) = checks.frozen_weights(evidence)
    assert finding.where["ranks"] == [3]
    assert finding.where["parameter"] == evidence.records[3].frozen[0].name
    assert "changed by step 1" in finding.message


def test_a_frozen_weight_with_a_gradient_is_named() -> None:
    evidence = adapted_cell()
    evidence.records[0].frozen[1].gradient = True
    (finding,) = checks.frozen_weights(evidence)
    assert "has a gradient on rank 0" in finding.message


def test_a_weight_that_trains_beside_the_adapters_is_named() -> None:
    evidence = adapted_cell()
    gradient = evidence.records[0].parameters[0].gradient
    name = "decoder.final_layernorm.weight"
    evidence.records[0].parameters.append(ParameterSeen(name=name, sharded=False, gradient=gradient))
    (finding,) = checks.frozen_weights(evidence)
    assert (finding.where["parameter"], finding.measured) == (name, 1)
    assert FACTORS[0] not in finding.message


def test_a_frozen_weight_that_is_loaded_with_other_bytes_is_named() -> None:
    saved, evidence = adapted_cell(), adapted_cell()
    evidence.saved = saved
    assert checks.frozen_weights(evidence) == []
    seen = evidence.records[2].frozen[0]
    seen.before = seen.after = "2f"
    (finding,) = checks.frozen_weights(evidence)
    assert "is loaded with other bytes than it was saved with on rank 2" in finding.message
