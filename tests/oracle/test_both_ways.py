"""How far rounding may move updates, whichever way it goes."""

from __future__ import annotations

import pytest
import torch

from harness.features.vision.config import TOWER
from harness.oracle.both_ways import BothWays
from harness.oracle.train import Oracle
from tests.oracle.test_train import BUILT, SEEING, cell, seeing


def apart(times: float, names: str = "") -> dict[str, tuple[float, float]]:
    """Of updates by gradients of which those of parameters with `names` are rounded to so many times what they are."""
    oracle = Oracle.of(cell(), BUILT)
    ways = BothWays(oracle)
    for exact in oracle.updates():
        ways.add(exact, {name: own * (times if names in name else 1.0) for name, own in exact.items()})
    return {name: (far.change, far.trained) for name, far in ways.apart().items()}


def test_gradients_that_are_not_rounded_are_apart_by_the_rounding_of_weights() -> None:
    found = apart(1.0)
    assert found.keys() == Oracle.of(cell(), BUILT).trained.keys()
    norms = [max(one) for name, one in found.items() if "norm" in name]  # the changes of large weights are small
    assert 1e-5 < max(norms) < 1e-3 and max(max(one) for one in found.values()) == max(norms)


@pytest.mark.parametrize("times", [0.0, 2.0])
def test_the_way_that_rounding_did_not_go_counts_as_much(times: float) -> None:
    """Twice a gradient has the same update, and none at all has none."""
    found = apart(times, "final_layernorm")
    for name, one in found.items():
        assert one == pytest.approx((1.0, 1.0) if "final_layernorm" in name else (0.0, 0.0), abs=1e-3), name


def test_of_a_weight_that_does_not_train_the_distance_is_that_of_the_weights() -> None:
    """Without images the tower has no gradients; where rounding makes some, Adam steps by the rate, twice."""
    oracle = Oracle.of(seeing("unpacked", 1, images=0), SEEING)
    ways, name = BothWays(oracle), f"{TOWER}decoder.layers.0.input_layernorm.weight"
    for exact in oracle.updates():
        assert not exact[name].any()
        ways.add(exact, {one: own + float(one == name) for one, own in exact.items()})
    far = ways.apart()[name]
    assert (far.change, far.trained) == pytest.approx((1e-3 * 8**0.5, 2e-3 * 8**0.5), rel=1e-3)


def test_rounding_to_float32_is_small() -> None:
    exact, rounded = Oracle.of(cell(), BUILT), Oracle.of(cell(), BUILT, torch.float32)
    ways = BothWays(exact)
    for one, other in zip(exact.updates(), rounded.updates(), strict=True):
        ways.add(one, other)
    far = [max(one.change, one.trained) for one in ways.apart().values()]
    assert 0 < max(far) < 0.1
