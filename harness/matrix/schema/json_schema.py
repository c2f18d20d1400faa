"""The JSON Schema of a matrix file, for editors: sections from their models, axes from the axis table."""

from __future__ import annotations

import copy
from typing import Any

from harness.core.cell.axes import SECTIONS
from harness.core.packing.documents import MAX_LENGTH, MAX_LENGTHS
from harness.core.packing.options import PackingOptions
from harness.core.setting import aliases_of
from harness.matrix.axes import ALIASES, AXES, AXIS_ALIASES, AxisRow
from harness.matrix.schema.section import model_of, without_links
from harness.matrix.schema.sections import DOCUMENT_MODES, LISTS, MODEL_PARTS, MatrixFile

_ARGUMENTS = "^args\\."  # axes of arguments of upstream's trainer, whose names only its parser knows
_WORD = [{"type": "string", "minLength": 1}, {"type": "number", "minimum": -1e300, "maximum": 1e300}]
_WORDS = {"type": "array", "items": {"anyOf": _WORD}, "minItems": 1}
_ARGUMENT = {"anyOf": [{"type": "null"}, {"type": "boolean"}, *_WORD, _WORDS]}
_LENGTHS = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": MAX_LENGTH}, "minItems": 1}
_LISTS = {
    "type": "object",
    "description": "Lists of lengths by name, for the axis documents: each a list, or the path of a CSV file.",
    "additionalProperties": {"anyOf": [_LENGTHS | {"maxItems": MAX_LENGTHS}, {"type": "string", "minLength": 1}]},
}
_DECLARED = (*SECTIONS.values(), *MODEL_PARTS.values(), PackingOptions)


def json_schema() -> dict[str, Any]:
    """Return JSON Schema (draft 2020-12) of a matrix file, long Megatron names included.

    A matrix file may have dashes in place of underscores; the schema lists only the names with underscores.
    """
    schema = MatrixFile.model_json_schema()
    definitions = schema["$defs"]
    for kind in _DECLARED:
        _add_aliases(definitions[model_of(kind).__name__]["properties"], aliases_of(kind))
    for kind in DOCUMENT_MODES.values():
        definitions[kind.__name__]["properties"][LISTS] = _LISTS
    definitions["AxisRow"] = _row(definitions)
    schema["properties"]["matrix"] = _matrix(definitions["AxisRow"]["properties"])
    for key_schema in schema["properties"].values():
        key_schema["description"] = without_links(key_schema["description"])
    _drop_null_defaults(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Packing harness matrix"} | schema


def _add_aliases(properties: dict[str, Any], aliases: dict[str, str]) -> None:
    for alias, name in aliases.items():
        properties[alias] = copy.deepcopy(properties[name]) | {"description": f"Same as {name}."}


def _row(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a row of include, exclude or a tied list: values of some axes."""
    row = AxisRow.model_json_schema()
    properties = row["properties"]
    for section, kind in SECTIONS.items():
        keys = definitions[model_of(kind).__name__]["properties"]
        properties |= {f"{section}.{key}": copy.deepcopy(value) for key, value in keys.items()}
    _add_aliases(properties, AXIS_ALIASES)
    assert properties.keys() >= {*AXES, *ALIASES}
    for key_schema in properties.values():
        key_schema.pop("default", None)  # an axis that a row leaves out has the value of the combination it extends
    return row | {"patternProperties": {_ARGUMENTS: _ARGUMENT}, "minProperties": 1}


def _matrix(axes: dict[str, Any]) -> dict[str, Any]:
    rows = {"type": "array", "items": {"$ref": "#/$defs/AxisRow"}}
    several = {
        name: {"anyOf": [axis, {"type": "array", "items": axis, "minItems": 1}]}
        | ({"description": axis["description"]} if "description" in axis else {})
        for name, axis in axes.items()
    }
    return {
        "type": "object",
        "description": "Axes: one value or a list. Any other key: a list of mappings of axes that vary together.",
        "properties": several | {"include": rows, "exclude": rows},
        "patternProperties": {_ARGUMENTS: {"anyOf": [_ARGUMENT, {"type": "array", "items": _ARGUMENT, "minItems": 1}]}},
        "additionalProperties": rows | {"minItems": 1},
    }


def _drop_null_defaults(node: Any) -> None:
    """Remove every `default: null`: editors would offer null, which a matrix file may not contain."""
    if isinstance(node, dict):
        if "default" in node and node["default"] is None:
            del node["default"]
        for child in node.values():
            _drop_null_defaults(child)
    elif isinstance(node, list):
        for child in node:
            _drop_null_defaults(child)
