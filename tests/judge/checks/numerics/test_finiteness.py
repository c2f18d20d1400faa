from __future__ import annotations

import math

from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, evidence_for, place_of, the_only_finding


def test_a_nan_activation_on_one_rank_names_layer_and_document() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    [record] = at(evidence, pp=1, tp=1)
    fingerprint = next(seen for seen in record.activations if seen.layer == 3).documents[5]
    fingerprint.norm_sq = math.nan
    finding = the_only_finding(evidence, "finiteness")
    assert place_of(finding, "stage", "layer", "document") == (1, 3, 5)
    assert finding.fault_class == fault_classes.NON_FINITE


def test_a_nan_document_loss_from_one_context_parallel_rank() -> None:
    evidence = evidence_for(config_of("reference", cp=2))
    [record] = at(evidence, cp=1)
    record.steps[0].documents[5].loss_sum = math.nan
    assert place_of(the_only_finding(evidence, "finiteness"), "document", "step") == (5, 0)


def test_a_nan_gradient() -> None:
    evidence = evidence_for(config_of("reference", pp=2))
    [record] = at(evidence, pp=1)
    record.parameters[0].gradient.projections[0] = math.nan
    assert place_of(the_only_finding(evidence, "finiteness"), "parameter") == (record.parameters[0].name,)
