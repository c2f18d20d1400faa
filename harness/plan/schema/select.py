"""`select` of a matrix file: all cells that constraints and rules allow, or a covering selection of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from harness.plan.schema.section import Section

NAMES = ("full", "covering")
PAIRS = 2
_MOST = 6


class CoveringSection(Section):
    """A covering selection: the cells that run have every t-tuple of axis values that an allowed cell has."""

    covering: Annotated[int, Field(ge=1, le=_MOST)] = Field(
        default=PAIRS, description="Number of axes covered together: 2 for every pair of values, 3 for every triple."
    )
    keep: list[str | dict[str, Any]] = Field(
        default_factory=list, description="Cells that always run: patterns over cell names, or values of axes."
    )


SelectSection = Annotated[Any, WithJsonSchema({"anyOf": [{"enum": [*NAMES]}, CoveringSection.model_json_schema()]})]
