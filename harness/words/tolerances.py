"""Tolerances as data: every bound has a unit, a direction and an origin that reports print beside it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Bound:
    """`measured` is within the bound when it is <= value; measured is always a distance >= 0."""

    value: float
    unit: str = "relative"  # relative: |a - b| / |b|; absolute: |a - b|; factor: a / b, of times
    direction: str = "either"  # either: both sides count; above, below: only values on that side of the reference
    origin: str = "default"


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Bounds of the numerics lane against the reference cell. Token counts and metadata are always exact."""

    document_loss: Bound
    step_loss: Bound
    grad_norm: Bound
    parameter_gradient: Bound  # distance of fingerprints relative to the norm of the reference gradient
    activation: Bound  # likewise, per layer and document
    repeated_document: Bound
    aux_loss: Bound  # of routers, against the harness's own arithmetic
    segment_slope: Bound  # of a factor of time: most documents in a pack over fewest, at the same tokens; whole step
    rotary_slope: Bound  # likewise, of the stack's rotary function alone
    packed_slower: Bound  # likewise: packed over unpacked, for the same documents
    ratio_screen: float = 0.02  # a ratio this near a layout factor is named after it


_SLOPE = Bound(value=1.25, unit="factor", origin="256 documents over 4 on CPU: megatron-core 0.16 to 0.18 at most 1.1")
_ROTARY = Bound(value=2.0, unit="factor", origin="256 documents over 4 on CPU: megatron-core 0.16 to 0.18 about 1.3")
_PACKED = Bound(value=1.25, unit="factor", origin="packing is there to save time; a quarter for noise")
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
FACTOR_NAMES = ("segment_slope", "rotary_slope", "packed_slower")  # of the throughput lane


@dataclass(frozen=True, kw_only=True)
class ToleranceOverrides:
    """What a matrix's `checks:` section sets: bound name -> value; unit stays, origin becomes the matrix.

    `throughput` names the checks that are asked for, each with its bound, also where that is the default.
    """

    numerics: dict[str, float] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)


def tolerances_for(dtype: str, overrides: ToleranceOverrides) -> Tolerances:
    """The bounds for a compute dtype ("fp32" or "bf16") with a matrix's overrides applied."""
    base = DEFAULTS[dtype]
    bounds = {name: getattr(base, name) for name in (*BOUND_NAMES, *FACTOR_NAMES)}
    for name, value in overrides.numerics.items():
        if name in bounds:
            bounds[name] = Bound(value=value, unit=bounds[name].unit, origin="matrix checks.numerics")
    for name, value in overrides.throughput.items():
        if name in bounds and value != bounds[name].value:
            bounds[name] = Bound(value=value, unit="factor", origin=f"matrix checks.throughput.{name}")
    return Tolerances(**bounds, ratio_screen=overrides.numerics.get("ratio_screen", base.ratio_screen))
