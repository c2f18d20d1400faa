"""Declares two axes and prints, as JSON, where they show up. Run as a separate process, since tables are
built at import.

Only the class below names the axes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from harness.core.cell import config
from harness.core.setting import setting


@dataclass(frozen=True, kw_only=True)
class CellConfig(config.CellConfig):
    """A cell with two more axes; controls keep the value of the second."""

    shuffling: str = setting(
        "none",
        doc="How weights are [shuffled](models.md).",
        axis="shuffling",
        choices=("none", "some", "all"),
        aliases=("weight_shuffling",),
    )
    rounding: str = setting(
        "nearest", doc="How weights are rounded.", axis="rounding", choices=("nearest", "stochastic"), in_control=True
    )


def facts() -> dict[str, Any]:
    """The axes in plan, schema, names, ids, reductions, the matrix of one cell and the page."""
    from harness.core.cell.axes import labelled
    from harness.core.cell.identity import cell_id, cell_name
    from harness.core.errors import InputError
    from harness.core.serialization import dumps, from_jsonable, loads
    from harness.matrix.load import one_cell
    from harness.matrix.schema.json_schema import json_schema
    from harness.matrix.schema.key_tables import tables
    from harness.triage.shrink.search import changes, reductions
    from tests.matrix.helpers import expand_axes, matrix_of

    axes = {"packing": "sft", "weight-shuffling": ["none", "some", "all"]}
    found = expand_axes(axes, constraints=['shuffling != "all" or tp == 1'])
    cells = [item for item in found.cells if item.role == "cell"]
    shuffled = cells[-1].config
    rounded = expand_axes({"packing": ["sft", "reference"], "rounding": ["nearest", "stochastic"]}).cells
    held = {item.id: item.config.rounding for item in rounded}
    written = one_cell(shuffled, name="one")
    (again,) = [item for item in expand_axes(written["matrix"], train=written["train"]).cells if item.role == "cell"]
    smaller = {item.dimension.name: item.config for item in reductions(shuffled)}
    properties = json_schema()["$defs"]["AxisRow"]["properties"]
    try:
        matrix_of(matrix={"packing": "sft", "shuffling": "most"})
        problem = ""
    except InputError as error:
        problem = str(error.problems[0])
    return {
        "names": [cell_name(item.config) for item in cells],
        "ids": [item.id for item in cells],
        "axes": [item.axes["shuffling"] for item in cells],
        "controls": sorted({item.control or "" for item in cells}),
        "kept": sorted({(item.config.rounding, held[item.control], item.group) for item in rounded if item.control}),
        "schema": properties["shuffling"],
        "alias": properties["weight_shuffling"]["description"],
        "one cell": written["matrix"],
        "again": [again.id, cell_id(shuffled)],
        "json": from_jsonable(config.CellConfig, loads(dumps(shuffled))) == shuffled,
        "smaller": list(changes(shuffled, smaller["shuffling"])),
        "label": labelled("shuffling", "all"),
        "page": [line for line in tables()["axes"].splitlines() if "shuffling" in line],
        "problem": problem,
    }


if __name__ == "__main__":
    config.CellConfig = CellConfig  # type: ignore[misc]
    print(json.dumps(facts()))
