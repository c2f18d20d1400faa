from __future__ import annotations

import copy

import pytest

from harness.judge.checks.numerics import router_tokens
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.parts import with_routers


def compared(**layout: int) -> CellEvidence:
    """A cell whose control has the same routers."""
    evidence = with_routers(aux_loss="none", **layout)
    control = evidence.control
    assert control is not None
    control.records[0].routers = [
        copy.deepcopy(seen) for _, record in sorted(evidence.records.items()) for seen in record.routers
    ]
    return evidence


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"cp": 2}, {"pp": 2}], ids=str)
def test_equal_counts_give_no_finding_whatever_the_layout(layout: dict[str, int]) -> None:
    assert router_tokens.check(compared(**layout)) == []


def test_one_token_routed_to_another_expert_names_layer_and_experts() -> None:
    evidence = compared(pp=2)
    seen = next(seen for seen in evidence.records[1].routers if seen.layer == 2)
    seen.real[0].counts[0] += 1
    seen.real[0].counts[3] -= 1
    (finding,) = router_tokens.check(evidence)
    assert (finding.where["stage"], finding.where["layer"], finding.where["experts"]) == (1, 2, [0, 3])


def test_padding_may_go_anywhere() -> None:
    evidence = compared()
    evidence.records[0].routers[0].padding[0].counts[0] += 1
    assert router_tokens.check(evidence) == []


def test_a_layer_that_was_not_recorded_is_a_finding() -> None:
    evidence = compared()
    evidence.records[0].routers = [seen for seen in evidence.records[0].routers if seen.layer == 1]
    (finding,) = router_tokens.check(evidence)
    assert "layer 2: not recorded" in finding.message
