"""`select` of a matrix file: all cells that constraints and rules allow, or a covering selection of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from harness.plan.schema.section import Section

NAMES = ("full", "covering")
PAIRS = 2
_MOST = 6


class CoveringSection(Section):
    """Every t-tuple of values of different axes that some allowed cell has is in a cell that runs."""

    covering: Annotated[int, Field(ge=1, le=_MOST)] = Field(
        default=PAIRS, description="Axes at a time: 2 covers every pair of values, 3 every triple."
    )
    keep: list[str | dict[str, Any]] = Field(
        default_factory=list, description="Cells never left out: patterns over cell names, or values of axes."
    )


SelectSection = Annotated[Any, WithJsonSchema({"anyOf": [{"enum": [*NAMES]}, CoveringSection.model_json_schema()]})]
