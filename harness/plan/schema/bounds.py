"""`checks.numerics` of a matrix: a bound is a number, or a mapping of value, unit and direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from harness.core.tolerances import BOUND_NAMES, DIRECTIONS, MOST_DISTANCE, RATIO_SCREEN, UNITS, UNSIGNED, Override
from harness.plan.schema.section import Section, dataclass_of, model_of, one_of

BoundSection: Any = model_of(Override)


def _as_mapping(value: Any) -> Any:
    """The mapping form of a bound: a plain number becomes its value."""
    if isinstance(value, (BoundSection, Mapping)):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number, or a mapping of value, unit and direction")
    if not value > 0:
        raise ValueError("must be above 0")
    if not value <= MOST_DISTANCE:
        raise ValueError(f"must be finite, and at most {MOST_DISTANCE:,.0f}")
    return {"value": float(value)}


def _check_keys(bounds: dict[str, Any]) -> dict[str, Any]:
    """The bounds; ValueError for a key that a bound cannot have."""
    for name, bound in bounds.items():
        if name in UNSIGNED and bound.direction not in (None, "either"):
            raise ValueError(f"{name} is a distance of fingerprints, which has no sign: leave direction out")
        if name == RATIO_SCREEN and (bound.unit or bound.direction):
            raise ValueError(f"{RATIO_SCREEN} is a plain number")
    return bounds


def overrides_of(bounds: Mapping[str, Section]) -> dict[str, Override]:
    return {name: dataclass_of(Override, bound) for name, bound in bounds.items()}


def as_written(bounds: Mapping[str, Override]) -> dict[str, Any]:
    """The section as in a matrix file: bound -> number, or a mapping if unit or direction was given."""
    return {
        name: bound.value
        if bound.unit is None and bound.direction is None
        else {key: value for key, value in vars(bound).items() if value is not None}
        for name, bound in bounds.items()
    }


_POSITIVE = {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_DISTANCE}
_SCHEMA = {
    "anyOf": [
        _POSITIVE,
        {
            "type": "object",
            "properties": {"value": _POSITIVE, "unit": {"enum": [*UNITS]}, "direction": {"enum": [*DIRECTIONS]}},
            "required": ["value"],
            "additionalProperties": False,
        },
    ]
}
BoundName = Annotated[str, one_of(*BOUND_NAMES, RATIO_SCREEN)]
BoundValue = Annotated[BoundSection, BeforeValidator(_as_mapping), WithJsonSchema(_SCHEMA)]
Bounds = Annotated[dict[BoundName, BoundValue], AfterValidator(_check_keys)]
