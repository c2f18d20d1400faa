from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import at, config_of, evidence_for, judge, place_of


def _evidence(**layout: int) -> CellEvidence:
    return evidence_for(replace(config_of("reference", **layout), recompute="full"))


def test_two_equal_forwards_pass() -> None:
    assert judge(_evidence(pp=2)).findings == []


def test_params_of_another_micro_batch_are_named_with_their_place() -> None:
    evidence = _evidence(pp=2)
    [record] = at(evidence, pp=1)
    first, second = (next(seen for seen in record.layers if seen.micro_batch == number) for number in (0, 1))
    assert first.params != second.params
    for seen in record.recomputed:
        if (seen.step, seen.layer, seen.micro_batch) == (0, 3, 0):
            seen.params = second.params
    [finding] = judge(evidence).findings
    assert finding.check == "params_recomputed"
    assert place_of(finding, "stage", "layer", "micro_batch", "field") == (1, 3, 0, "cu_seqlens_q")


def test_params_that_only_the_first_forward_got() -> None:
    evidence = _evidence()
    for seen in evidence.records[0].recomputed:
        seen.params = None
    [finding] = judge(evidence).findings
    assert (finding.check, finding.measured) == ("params_recomputed", ["packed_seq_params"])


@pytest.mark.parametrize("kept", [0, 1])
def test_a_layer_that_is_not_computed_again_is_no_evidence(kept: int) -> None:
    evidence = _evidence()
    del evidence.records[0].recomputed[kept:]
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "recomputed: " in verdict.reason
