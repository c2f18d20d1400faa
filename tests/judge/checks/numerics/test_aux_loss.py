from __future__ import annotations

import pytest

from harness.features.experts import checks
from tests.judge.parts import with_routers


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"cp": 2}, {"pp": 2}, {"dp": 2}, {"micro_batch_size": 2}], ids=str)
@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss"])
def test_what_agrees_with_the_arithmetic_gives_no_finding(kind: str, layout: dict[str, int]) -> None:
    assert checks.aux_loss(with_routers(aux_loss=kind, **layout)) == []


@pytest.mark.parametrize(("layout", "factor", "name"), [({"cp": 2}, 0.5, "x 1/cp"), ({"tp": 2}, 2.0, "x tp")])
def test_a_weight_that_is_off_by_a_factor_of_the_layout_is_named(
    layout: dict[str, int], factor: float, name: str
) -> None:
    evidence = with_routers(**layout)
    for record in evidence.records.values():
        record.aux_scale = factor
    (finding,) = checks.aux_loss(evidence)
    assert (finding.where["layer"], finding.where["ratio"]) == (1, name)
    assert finding.fault_class == f"D normalisation: {name}"
    assert "2 of 2 layers differ" in finding.message


def test_routers_without_an_auxiliary_loss_are_left_alone() -> None:
    assert checks.aux_loss(with_routers(aux_loss="none")) == []
