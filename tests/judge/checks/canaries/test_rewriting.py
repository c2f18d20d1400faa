from __future__ import annotations

import pytest

from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import at, config_of, evidence_for, judge, leg_of, place_of, the_only_finding


def evidence(**layout: int) -> CellEvidence:
    return evidence_for(config_of("sft", canaries=("rewriting",), **layout))


def test_a_clean_cell_has_no_faulty_module() -> None:
    assert judge(evidence(tp=2, pp=2, cp=2)).findings == []


def test_all_faulty_forwards_are_named_and_a_module_that_inherits_the_error_is_not() -> None:
    found = evidence(pp=2)
    for stage, layer in ((0, 2), (1, 4)):
        seen = leg_of(at(found, pp=stage)[0], "rewriting")
        next(item for item in seen.activations if item.layer == layer).documents[3].norm_sq *= 1.01
    for layer in (2, 3, 4):
        record = at(found, pp=int(layer > 2))[0]
        next(item for item in record.activations if item.layer == layer).documents[3].norm_sq *= 1.01
    finding = next(item for item in judge(found).findings if item.check == "rewriting")
    assert place_of(finding, "direction", "modules", "stages") == ("forward", ["layer 2", "layer 4"], [0, 1])
    assert place_of(finding, "layer", "document", "inherited") == (2, 3, ["layer 3"])
    assert "layer 3 only inherited the error" in finding.message


def test_a_gradient_that_differs_though_the_forward_is_right_is_a_faulty_backward() -> None:
    found = evidence(tp=2, pp=2)
    for record in at(found, pp=1):
        seen = leg_of(record, "rewriting").parameters
        next(item for item in seen if item.name == "decoder.layers.3.input_layernorm.weight").gradient.norm_sq *= 1.1
    finding = the_only_finding(found, "rewriting")
    assert place_of(finding, "direction", "modules", "stage", "layer") == ("backward", ["layer 4"], 1, 4)
    assert finding.where["parameter"] == "decoder.layers.3.input_layernorm.weight"


def test_the_gradient_of_an_input_alone_is_enough() -> None:
    found = evidence(cp=2)
    for record in found.records.values():
        leg_of(record, "rewriting").input_gradients[1].documents[3].norm_sq *= 1.1
    assert place_of(the_only_finding(found, "rewriting"), "modules", "parameter") == (["layer 2"], "input")


def test_the_loss_belongs_to_the_output() -> None:
    found = evidence(pp=2)
    leg_of(at(found, pp=1)[0], "rewriting").documents[3].loss_sum *= 1.01
    assert place_of(the_only_finding(found, "rewriting"), "modules", "document", "stage") == (["output"], 3, 1)


@pytest.mark.parametrize(("factor", "ratio"), [(2.0, "x cp"), (1.37, None)])
def test_wrong_gradients_of_all_modules_point_to_their_reduction(factor: float, ratio: str | None) -> None:
    found = evidence(cp=2)
    for record in found.records.values():
        for item in leg_of(record, "rewriting").parameters:
            item.gradient.norm_sq *= factor**2
            item.gradient.projections = [value * factor for value in item.gradient.projections]
    finding = the_only_finding(found, "rewriting")
    assert finding.where.get("ratio") == ratio
    assert finding.where["direction"] == "reduction"
    assert finding.fault_class.startswith(fault_classes.NORMALISATION if ratio else fault_classes.GRADIENT_REDUCTION)
