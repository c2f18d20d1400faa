from __future__ import annotations

import pytest

from harness.features.experts import checks
from tests.judge.parts import with_routers


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"cp": 2}, {"pp": 2}, {"dp": 2}, {"micro_batch_size": 2}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_what_agrees_with_the_arithmetic_gives_no_finding(masked: bool, layout: dict[str, int]) -> None:
    assert checks.z_loss(with_routers(aux_loss="none", masked=masked, z_loss_coeff=0.1, **layout)) == []


def test_a_value_that_is_added_up_over_ranks_is_named_with_layer_and_micro_batch() -> None:
    evidence = with_routers(z_loss_coeff=0.1, cp=2)
    for record in evidence.records.values():
        for seen in record.routers:
            assert seen.z_loss is not None
            seen.z_loss *= 2
    (finding,) = checks.z_loss(evidence)
    assert finding.message.startswith("z_loss of layer 1, micro-batch 0: ")
    assert (finding.where["layer"], finding.where["micro_batch"]) == (1, 0)


def test_a_weight_that_is_off_by_a_factor_of_the_layout_is_named() -> None:
    evidence = with_routers(z_loss_coeff=0.1, tp=2)
    for record in evidence.records.values():
        for seen in record.routers:
            assert seen.z_weighted is not None
            seen.z_weighted /= 2
    (finding,) = checks.z_loss(evidence)
    assert "gradients of z_loss in layer 1" in finding.message
    assert finding.where["ratio"] == "x 1/tp"


def test_padding_that_should_be_masked_is_found() -> None:
    evidence = with_routers(z_loss_coeff=0.1, masked=True)
    for seen in evidence.records[0].routers:
        seen.real, seen.padding = seen.padding, seen.real
    (finding,) = checks.z_loss(evidence)
    assert "z_loss of layer 1" in finding.message


def test_a_z_loss_that_was_never_attached_is_a_finding() -> None:
    evidence = with_routers(z_loss_coeff=0.1)
    for seen in evidence.records[0].routers:
        seen.z_loss = seen.z_weighted = None
    (finding,) = checks.z_loss(evidence)
    assert "not recorded" in finding.message


def test_routers_without_a_z_loss_are_left_alone() -> None:
    assert checks.z_loss(with_routers()) == []
