from __future__ import annotations

from harness.core.outcomes import Outcome
from harness.core.run.tensor_records import ParameterSeen
from harness.judge.checks.gradients import parameter_gradients
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding


def _scale(seen: ParameterSeen, factor: float) -> None:
    seen.gradient.norm_sq *= factor**2
    seen.gradient.projections = [value * factor for value in seen.gradient.projections]


def test_if_all_shards_are_off_no_tp_rank_is_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        _scale(next(seen for seen in record.parameters if seen.name == "output_layer.weight"), 1.01)
    assert the_only_finding(evidence, "parameter_gradients").where["boundaries"] == ["output layer"]


def test_a_factor_of_those_that_differ_is_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        for seen in record.parameters:
            if not seen.sharded:
                _scale(seen, 2.0)
    finding = the_only_finding(evidence, "parameter_gradients")
    assert finding.where["ratio"] == "x tp"
    assert "the ratio is x tp on all that differ; 5 of 15 parameters differ" in finding.message


def test_a_norm_ratio_is_not_named_if_the_direction_is_wrong() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    for record in evidence.records.values():
        for seen in record.parameters:
            _scale(seen, 2.0)
            seen.gradient.projections = [-value for value in seen.gradient.projections]
    assert "ratio" not in the_only_finding(evidence, "parameter_gradients").where


def test_the_first_parameter_in_model_order_leads() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    for record in evidence.records.values():
        for seen in record.parameters:
            if "layers.1." in seen.name or "layers.3." in seen.name:
                _scale(seen, 1.2)
    finding = the_only_finding(evidence, "parameter_gradients")
    assert place_of(finding, "layer", "stage") == (2, 0)
    assert "6 of 15 parameters differ" in finding.message


def test_where_backward_went_wrong_is_named_if_all_that_it_reached_later_is_wrong() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    names = [*evidence.reference.gradients]  # type: ignore[union-attr]
    reached = names[: names.index("decoder.layers.1.mlp.linear_fc1.weight") + 1]
    for record in evidence.records.values():
        for seen in record.parameters:
            if seen.name in reached:
                _scale(seen, 1.2)
    finding = the_only_finding(evidence, "parameter_gradients")
    assert "; backward meets decoder.layers.1.mlp.linear_fc1.weight first; " in finding.message
    assert "boundaries" not in finding.where


def test_a_factor_that_all_parameters_share_is_named() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    for record in evidence.records.values():
        for seen in record.parameters:
            _scale(seen, 0.5)
    assert the_only_finding(evidence, "parameter_gradients").fault_class == "D normalisation: x 1/cp"


def test_a_parameter_that_was_not_recorded() -> None:
    evidence = evidence_for(config_of("sft"))
    gone = evidence.records[0].parameters.pop(4)
    [finding] = parameter_gradients(evidence)
    assert place_of(finding, "parameter") == (gone.name,)
    assert "missing" in finding.message
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert f"parameters: no rank holds {gone.name}" in verdict.reason


def test_nothing_to_compare_is_not_a_pass() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.control is not None
    for records in (evidence.records, evidence.control.records):
        records[0].parameters = []
    [finding] = parameter_gradients(evidence)
    assert "no gradients to compare with" in finding.message
    assert judge(evidence).outcome is Outcome.ERROR


def test_a_direction_that_differs_at_equal_norm() -> None:
    evidence = evidence_for(config_of("sft"))
    seen = evidence.records[0].parameters[3]
    seen.gradient.projections = [-value for value in seen.gradient.projections]
    assert place_of(the_only_finding(evidence, "parameter_gradients"), "parameter") == (seen.name,)


def test_rounding_noise_passes() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        for seen in record.parameters:
            _scale(seen, 1 + 1e-6)
    assert judge(evidence).findings == []
