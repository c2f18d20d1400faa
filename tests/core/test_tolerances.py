from __future__ import annotations

import pytest

from harness.core.tolerances import (
    BOUND_NAMES,
    MAX_NOISE,
    NOISE_FACTOR,
    Bound,
    NoiseFloor,
    Override,
    ToleranceOverrides,
    looser,
    tolerances_for,
)

NOTHING = ToleranceOverrides()


def test_fp32_is_tight_and_never_measured() -> None:
    assert all(getattr(tolerances_for("fp32", NOTHING), name).value <= 1e-4 for name in BOUND_NAMES)


def test_a_measured_floor_takes_the_place_of_the_default() -> None:
    floors = {"step_loss": NoiseFloor(value=2e-4, by="documents in reverse order")}
    bounds = tolerances_for("bf16", NOTHING, floors)
    assert bounds.step_loss.value == pytest.approx(NOISE_FACTOR * 2e-4)
    assert bounds.step_loss.origin == "noise floor 0.0002 (documents in reverse order) x 3"
    assert bounds.grad_norm == tolerances_for("bf16", NOTHING).grad_norm


def test_no_noise_at_all_does_not_make_a_bound_of_zero() -> None:
    bound = tolerances_for("bf16", NOTHING, {"step_loss": NoiseFloor(value=0.0, by="x")}).step_loss
    assert bound.value == 5e-4
    assert bound.origin.startswith("noise floor 0 is below it; ")


@pytest.mark.parametrize("name", ["document_loss", "repeated_document"])
def test_one_pair_in_bf16_that_is_close_by_chance_leaves_a_cells_own_runs_room(name: str) -> None:
    # Clean: in reverse order the loss of a document was off by 2.7e-4, where the oracle's pair was off by 8.6e-5.
    floors = {name: NoiseFloor(value=8.6e-5, by="the oracle in the cell's dtype")}
    assert getattr(tolerances_for("bf16", NOTHING, floors), name).value == 1e-3
    assert getattr(tolerances_for("fp32", NOTHING, floors), name).value == pytest.approx(2.58e-4)


def test_the_matrix_takes_precedence_over_measured_noise() -> None:
    numerics = {"step_loss": Override(value=0.5, direction="above"), "activation": Override(value=9.0, unit="absolute")}
    floors = {"step_loss": NoiseFloor(value=1e-3, by="x")}
    bounds = tolerances_for("bf16", ToleranceOverrides(numerics=numerics), floors)
    assert bounds.step_loss == Bound(value=0.5, direction="above", origin="matrix checks.numerics")
    assert bounds.activation == Bound(value=9.0, unit="absolute", origin="matrix checks.numerics")


def test_noise_beyond_what_a_bound_can_allow_is_stated_unless_the_matrix_sets_the_bound() -> None:
    floors = {"activation": NoiseFloor(value=MAX_NOISE * 1.01, by="other weights", at="document 3 after layer 2")}
    assert tolerances_for("bf16", NOTHING, floors).too_noisy == (
        "the noise of the reference is too large to compare: the floor of activation is 0.135 (document 3 after "
        "layer 2; other weights), more than 0.13"
    )
    set_by_user = ToleranceOverrides(numerics={"activation": Override(value=0.1)})
    assert tolerances_for("bf16", set_by_user, floors).too_noisy == ""
    floors = {"activation": NoiseFloor(value=MAX_NOISE * 0.99, by="other weights")}
    assert tolerances_for("bf16", NOTHING, floors).too_noisy == ""


def test_the_looser_of_two_bounds_is_of_one_unit() -> None:
    small, large = Bound(value=1e-3), Bound(value=1e-2)
    assert looser(small, large) is large is looser(large, small)
    assert looser(small, Bound(value=5.0, unit="absolute")) is small
