"""Tolerances as data: every bound has a unit, a direction and an origin, which reports show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from harness.core.setting import setting

DistanceUnit = Literal["relative", "absolute"]  # |a - b| / |b| and |a - b|, in the numerics lane
Unit = Literal["relative", "absolute", "factor"]  # factor: a / b, for times
Direction = Literal["either", "above", "below"]
UNITS: tuple[str, ...] = get_args(DistanceUnit)
DIRECTIONS: tuple[str, ...] = get_args(Direction)
MAX_DISTANCE = 1e6  # relative or absolute: a larger bound would let every number pass
MIN_RUNS = 5  # green runs on the same hardware that make a baseline


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A measured distance, which is never negative, is within the bound if it is at most `value`."""

    value: float
    unit: Unit = "relative"
    direction: Direction = "either"  # the side of the control on which values count
    origin: str = "default"


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Bounds of the numerics lane against the control. Token counts and metadata are always exact."""

    document_loss: Bound
    step_loss: Bound
    grad_norm: Bound
    parameter_gradient: Bound  # distance of fingerprints relative to the norm of the control's gradient
    activation: Bound  # distance of fingerprints, per layer and document, relative to the norm of the control's
    repeated_document: Bound
    aux_loss: Bound  # of routers, against the harness's own arithmetic
    # Ratios of times:
    segment_slope: Bound  # packs of the most documents over packs of the fewest, same tokens; whole step
    rotary_slope: Bound  # packs of the most documents over packs of the fewest; the stack's rotary function alone
    packed_slower: Bound  # packed over unpacked, same documents
    slower_than: Bound  # this stack over the base stack
    slower_than_history: Bound  # this run over the median of earlier green runs
    noise_only: frozenset[str] = frozenset()  # parameters whose gradient in the control is rounding noise
    chosen: frozenset[str] = frozenset()  # bounds that the matrix sets
    too_noisy: str = ""  # why nothing can be compared with the control; empty if it can
    ratio_screen: float = 0.02  # a ratio this close to a layout factor is reported as that factor


_SLOPE = Bound(value=1.25, unit="factor", origin="256 documents over 4 on CPU: megatron-core 0.16 to 0.18 at most 1.1")
_ROTARY = Bound(value=2.0, unit="factor", origin="256 documents over 4 on CPU: megatron-core 0.16 to 0.18 about 1.3")
_PACKED = Bound(value=1.25, unit="factor", origin="packing should save time; 25 % for noise")
SLOWER_RUN = Bound(value=1.25, unit="factor", origin="a quarter, since two runs are apart in time")
_SLOWER = Bound(value=1.1, unit="factor", origin="10 %: throughput tests upstream allow 5 to 15 %")
_HISTORY = Bound(value=1.15, unit="factor", origin="throughput tests upstream allow 5 to 15 %")
_MEASURED = "fp32 layouts of megatron-core 0.16 to 0.19 on CPU agree to about 1e-7"
_FP32 = Tolerances(
    document_loss=Bound(value=1e-5, origin=_MEASURED),
    step_loss=Bound(value=1e-5, origin=_MEASURED),
    grad_norm=Bound(value=1e-4, origin=_MEASURED),
    parameter_gradient=Bound(value=1e-4, origin=f"{_MEASURED}; a cosine of 1 - 1e-6 would be 1.4e-3"),
    activation=Bound(value=1e-4, origin=_MEASURED),
    repeated_document=Bound(value=1e-5, origin=_MEASURED),
    aux_loss=Bound(value=1e-5, origin=_MEASURED),
    segment_slope=_SLOPE,
    rotary_slope=_ROTARY,
    packed_slower=_PACKED,
    slower_than=_SLOWER,
    slower_than_history=_HISTORY,
)
_FIFTH = "fp32 cells of megatron-core 0.16 to 0.19 on CPU differ from the oracle by a fifth of it at most"
_ORACLE = replace(
    _FP32,
    document_loss=Bound(value=5e-6, origin=_FIFTH),
    step_loss=Bound(value=5e-6, origin=_FIFTH),
    grad_norm=Bound(value=5e-6, origin=_FIFTH),
    parameter_gradient=Bound(value=1e-5, origin=_FIFTH),
    activation=Bound(value=5e-6, origin=_FIFTH),
)
# With few documents, one run of the oracle in bf16 may be close to that in float64 by chance.
_HALF = "bf16 rounds by 2^-8; clean cells of 1 to 8 documents differ from the oracle by a half of it at most"
_ORACLE_BF16 = replace(
    _ORACLE,
    document_loss=Bound(value=1e-3, origin=_HALF),
    step_loss=Bound(value=5e-4, origin=_HALF),
    grad_norm=Bound(value=5e-3, origin=_HALF),
    parameter_gradient=Bound(value=4e-2, origin=_HALF),
    activation=Bound(value=2.5e-2, origin=_HALF),
    repeated_document=Bound(value=1e-3, origin=_HALF),
)
_BF16_EPS = "bf16 rounds by 2^-8 = 3.9e-3; Megatron-LM and SkyRL parity practice"
_BF16 = Tolerances(
    document_loss=Bound(value=2e-2, origin=_BF16_EPS),
    step_loss=Bound(value=2e-3, origin=_BF16_EPS),
    grad_norm=Bound(value=1e-2, origin=_BF16_EPS),
    parameter_gradient=Bound(value=5e-2, origin=_BF16_EPS),
    activation=Bound(value=5e-2, origin=_BF16_EPS),
    repeated_document=Bound(value=2e-2, origin=_BF16_EPS),
    aux_loss=Bound(value=2e-2, origin=_BF16_EPS),
    segment_slope=_SLOPE,
    rotary_slope=_ROTARY,
    packed_slower=_PACKED,
    slower_than=_SLOWER,
    slower_than_history=_HISTORY,
)
DEFAULTS: dict[str, Tolerances] = {"fp32": _FP32, "bf16": _BF16}
BOUND_NAMES = (
    "document_loss",
    "step_loss",
    "grad_norm",
    "parameter_gradient",
    "activation",
    "repeated_document",
    "aux_loss",
)
FACTOR_NAMES = (
    "segment_slope",
    "rotary_slope",
    "packed_slower",
    "slower_than",
    "slower_than_history",
)  # of the throughput lane
RATIO_SCREEN = "ratio_screen"
UNSIGNED = ("parameter_gradient", "activation")  # distances of fingerprints, which have no above or below
NOISE_FACTOR = 3.0  # a bound is this many times the measured noise; packing practice accepts up to 3
SMALLEST_FACTOR = 2.0  # where three times the noise would accept a weight that does not change
# Of later steps: the paths of rounding differ, and one pair of trainings samples them once.
GROWTH_FACTOR = 10.0
# Of two trainings that follow the same routers in fp32, which never part by a choice: of 18 clean cells with experts at
# a learning rate of 0.03, one was 15 times as far from the oracle as they were from each other.
FOLLOWED_FACTOR = 30.0
# Of outputs of layers in evaluations of bf16 models: clean ones differ as two trainings do, and where experts are left
# out, by nine times that.
OUTPUTS_FACTOR = 5.0
# A measured bound above this cannot tell right from wrong: 0.5 accepts a halved gradient, 1 accepts zeros. The bounds
# of bf16 models of up to 6 layers are at most 0.22 on CPU.
MAX_MEASURED = 0.4
# In fp32 rounding of 1e-7 that has grown to a tenth of this may grow by any factor in the next step: of 34 clean cells
# at learning rates of 0.1 and more, two exceeded ten times what one pair of trainings showed, 0.002 and 0.008. So it is
# in bf16: of 16 clean cells with experts at a learning rate of 0.03, two did, where a pair showed 0.011 and 0.016.
MAX_GROWN = {"fp32": 0.01, "bf16": 0.1}
ACCEPTS_NONE = 1.0  # a relative bound from which on an update that did not take place would pass
MAX_NOISE = MAX_MEASURED / NOISE_FACTOR
# Rounding to bf16 moves a gradient by at most about this share of the norm of all gradients together. A gradient within
# it that differs from itself by more than MAX_NOISE is nothing but rounding, as of a bias that the softmax cancels.
ROUNDING_SHARE = 2.0**-8


@dataclass(frozen=True, kw_only=True)
class Override:
    """The largest allowed distance from the control; None: as in the default bound."""

    value: float = setting(doc="Largest allowed distance.", gt=0, le=MAX_DISTANCE)
    unit: DistanceUnit | None = setting(
        None, doc="Relative to the control, or absolute; if omitted, as in the default bound."
    )
    direction: Direction | None = setting(
        None, doc="Count values on this side of the control only; if omitted, either."
    )


@dataclass(frozen=True, kw_only=True)
class ToleranceOverrides:
    """The bounds that a matrix's `checks:` section sets, by name.

    `throughput` holds every requested check with its bound, even if that is the default.
    """

    numerics: dict[str, Override] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """How far the control differs from itself in one quantity, in the unit of that quantity's bound."""

    value: float
    by: str  # what was varied in the leg that differed most
    at: str = ""  # the parameter, layer or document that differed most; empty for sums over all
    noise_only: tuple[str, ...] = ()  # parameters whose gradient is rounding noise: they set no floor


def tolerances_for(
    dtype: str,
    overrides: ToleranceOverrides,
    floors: Mapping[str, NoiseFloor] | None = None,
    *,
    by_oracle: bool = False,
) -> Tolerances:
    """Return the bounds for a compute dtype ("fp32" or "bf16"), of distances from the control or `by_oracle`.

    Values of the matrix take precedence over the measured noise of the reference, and that over the defaults. A bound
    from noise is never tighter than the least one of its dtype.
    """
    base, least = _tables(dtype, by_oracle=by_oracle)
    floors = floors or {}
    bounds = {name: getattr(base, name) for name in (*BOUND_NAMES, *FACTOR_NAMES)}
    for name, floor in floors.items():
        bounds[name] = _measured(floor, getattr(least, name), stated=dtype != "fp32")
    noisy = (name for name in floors if bounds[name].value > MAX_MEASURED and name not in overrides.numerics)
    too_noisy = next((_too_noisy(name, floors[name]) for name in noisy), "")
    screen = overrides.numerics.get(RATIO_SCREEN)
    return Tolerances(
        **(bounds | _overridden(bounds, overrides)),
        noise_only=frozenset(name for floor in floors.values() for name in floor.noise_only),
        chosen=frozenset(overrides.numerics),
        too_noisy=too_noisy,
        ratio_screen=screen.value if screen else base.ratio_screen,
    )


def _tables(dtype: str, *, by_oracle: bool) -> tuple[Tolerances, Tolerances]:
    """Return the bounds of a dtype without noise, and the least ones with it."""
    oracle = _ORACLE if dtype == "fp32" else _ORACLE_BF16
    if by_oracle:
        return oracle, oracle
    return DEFAULTS[dtype], _FP32 if dtype == "fp32" else _ORACLE_BF16


def _overridden(bounds: Mapping[str, Bound], overrides: ToleranceOverrides) -> dict[str, Bound]:
    """Return the bounds that the matrix sets."""
    numerics = {
        name: Bound(
            value=override.value,
            unit=override.unit or bounds[name].unit,
            direction=override.direction or bounds[name].direction,
            origin="matrix checks.numerics",
        )
        for name, override in overrides.numerics.items()
        if name in bounds
    }
    throughput = {
        name: Bound(value=value, unit="factor", origin=f"matrix checks.throughput.{name}")
        for name, value in overrides.throughput.items()
        if name in bounds and value != bounds[name].value
    }
    return numerics | throughput


def _measured(floor: NoiseFloor, least: Bound, *, stated: bool) -> Bound:
    """`stated`: whether a bound that is that of fp32 says why."""
    value = NOISE_FACTOR * floor.value
    if value < least.value:
        return replace(least, origin=f"noise floor {floor.value:.2g} is below it; {least.origin}") if stated else least
    return Bound(value=value, origin=f"noise floor {floor.value:.2g} ({floor.by}) x {NOISE_FACTOR:g}")


def _too_noisy(name: str, floor: NoiseFloor) -> str:
    at = f"{floor.at}; " if floor.at else ""
    return (
        f"the noise of the reference is too large to compare: the floor of {name} is {floor.value:.3g} "
        f"({at}{floor.by}), more than {MAX_NOISE:.2g}"
    )


def grown(
    bound: Bound, floor: NoiseFloor | None, most: float = MAX_MEASURED, factor: float = GROWTH_FACTOR
) -> Bound | None:
    """Return the bound after updates that amplify rounding, by how far apart two trainings of the reference are then.

    None where it would be above `most` and accept wrong numbers, or where the trainings diverge.
    """
    if floor is None or floor.value * factor <= bound.value:
        return bound
    value = floor.value * factor
    if not value <= most:
        return None
    return Bound(
        value=value, origin=f"two trainings of the reference differ by {floor.value:.2g} ({floor.by}), x {factor:g}"
    )


def looser(one: Bound, other: Bound) -> Bound:
    """Return the bound that allows more; `one`, which the user set, if their units differ."""
    return other if one.unit == other.unit and other.value > one.value else one
