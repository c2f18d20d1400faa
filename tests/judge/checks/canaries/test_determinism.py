from __future__ import annotations

from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import config_of, evidence_for, judge, leg_of, place_of, the_only_finding


def test_the_first_layer_that_differs_by_a_bit_is_named_before_what_follows_from_it() -> None:
    evidence = evidence_for(config_of("sft", pp=2, canaries=("determinism",)))
    seen = leg_of(evidence.records[1], "determinism")
    seen.activations[1].documents[2].projections[0] *= 1 + 1e-15
    seen.parameters[0].gradient.norm_sq *= 1 + 1e-15
    seen.documents[5].loss_sum *= 1 + 1e-15
    finding = the_only_finding(evidence, "determinism")
    layer = seen.activations[1].layer
    assert place_of(finding, "stage", "rank", "layer", "document") == (1, 1, layer, 2)
    assert finding.fault_class == fault_classes.DETERMINISM
    assert "3 values differ" in finding.message


def test_on_a_gpu_bits_may_differ() -> None:
    evidence = evidence_for(config_of("sft", canaries=("determinism",)))
    evidence.records[0].environment["device"] = "NVIDIA H200"
    leg_of(evidence.records[0], "determinism").parameters[3].gradient.norm_sq *= 1 + 1e-12
    assert judge(evidence).findings == []
