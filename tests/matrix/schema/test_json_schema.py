"""The schema, checked with a small validator that supports only the keywords in use and fails for any other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.inputs.yaml_file import read
from harness.matrix.cluster import ClusterProfile
from harness.matrix.schema.json_schema import json_schema
from harness.matrix.schema.section import model_of

_NOTES = {"title", "description", "default", "$schema", "$defs", "discriminator"}
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}


def complaints(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> list[str]:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return complaints(value, root["$defs"][name], root, at)
    found: list[str] = []
    for keyword, wanted in schema.items():
        found += _keyword(keyword, wanted, value, schema, root, at)
    return found


def _keyword(keyword: str, wanted: Any, value: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    if keyword in _NOTES:
        return []
    if keyword in ("anyOf", "oneOf"):
        fitting = sum(not complaints(value, option, root, at) for option in wanted)
        return [] if fitting and (keyword == "anyOf" or fitting == 1) else [f"{at}: fits none of {keyword}"]
    if keyword == "type":
        right = wanted == "null" and value is None
        right = right or (wanted != "null" and isinstance(value, _TYPES[wanted]))
        right = right and (not isinstance(value, bool) or wanted == "boolean")
        return [] if right else [f"{at}: not of type {wanted}"]
    if keyword in ("properties", "patternProperties", "additionalProperties", "required", "minProperties"):
        return _object(keyword, wanted, value, schema, root, at) if isinstance(value, dict) else []
    if keyword in ("items", "minItems", "maxItems"):
        return _array(keyword, wanted, value, root, at) if isinstance(value, list) else []
    checks = {
        "const": lambda: value == wanted,
        "enum": lambda: value in wanted,
        "minimum": lambda: value >= wanted,
        "maximum": lambda: value <= wanted,
        "exclusiveMinimum": lambda: value > wanted,
        "minLength": lambda: len(value) >= wanted,
        "maxLength": lambda: len(value) <= wanted,
        "pattern": lambda: re.search(wanted, value) is not None,
        "format": lambda: True,
        "propertyNames": lambda: all(not complaints(name, wanted, root, at) for name in value),
    }
    try:
        return [] if checks[keyword]() else [f"{at}: {keyword} {wanted} does not hold for {value!r}"]
    except TypeError:
        return []  # the keyword does not apply to this type


def _object(
    keyword: str, wanted: Any, value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> list[str]:
    if keyword == "required":
        return [f"{at}: {name} is missing" for name in wanted if name not in value]
    if keyword == "minProperties":
        return [] if len(value) >= wanted else [f"{at}: too few keys"]
    known = schema.get("properties", {})
    if keyword == "properties":
        return [c for k, v in value.items() if k in known for c in complaints(v, known[k], root, f"{at}.{k}")]
    patterns = schema.get("patternProperties", {})
    fitting = {name: next((p for p in patterns if re.search(p, name)), None) for name in value}
    if keyword == "patternProperties":
        return [c for k, p in fitting.items() if p for c in complaints(value[k], patterns[p], root, f"{at}.{k}")]
    extra = {name: item for name, item in value.items() if name not in known and not fitting[name]}
    if wanted is False:
        return [f"{at}.{name}: not allowed" for name in extra]
    return [] if wanted is True else [c for k, v in extra.items() for c in complaints(v, wanted, root, f"{at}.{k}")]


def _array(keyword: str, wanted: Any, value: list[Any], root: dict[str, Any], at: str) -> list[str]:
    if keyword == "minItems":
        return [] if len(value) >= wanted else [f"{at}: too few items"]
    if keyword == "maxItems":
        return [] if len(value) <= wanted else [f"{at}: too many items"]
    return [c for n, item in enumerate(value) for c in complaints(item, wanted, root, f"{at}[{n}]")]


def test_the_schema_accepts_every_shipped_matrix(root: Path) -> None:
    schema = json_schema()
    files = sorted((root / "matrices").glob("*.yaml"))
    assert files
    for file in files:
        assert complaints(read(file).values, schema, schema) == []


def test_the_schema_accepts_aliases_ties_and_every_section() -> None:
    values = {
        "name": "t",
        "model": {"num_layers": 4},
        "train": {"seq_len": 64},
        "documents": {"mode": "distribution", "max_seq_len": 64, "mean_seq_len": 20},
        "packing_options": {"pad_seq_to_mult": "auto"},
        "matrix": {
            "tensor_model_parallel_size": [1, 2],
            "layout": [{"pp": 2, "vpp": 2}],
            "packing": "sft",
            "sp": ["auto", False],
            "train.seq_length": [64, 128],
            "include": [{"cp": 2, "packing": "sft"}],
        },
        "constraints": ["tp < 2"],
        "stacks": {"a": {"packages": ["six"]}, "b": [{"checkout": "x", "ref": "y", "package": "megatron-lm"}]},
        "cluster": "local",
        "launch": {"parallel_ranks": 2, "cells_per_allocation": "auto", "nodes_per_cell": 4},
        "checks": {"numerics": {"step_loss": 1e-4}},
        "xfail": [
            {"pattern": "*", "reason": "r", "lanes": ["metadata"], "message_contains": ["stage 1"], "strict": True}
        ],
    }
    schema = json_schema()
    assert complaints(values, schema, schema) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"nam": "t"},
        {"model": {"hiden": 1}},
        {"model": {"layers": 0}},
        {"model": {"layers": "4"}},
        {"train": {"lr": 0}},
        {"documents": {"mode": "mock"}},
        {"documents": {"mode": "adversarial", "path": "x"}},
        {"packing_options": {"pad_seq_to_mult": None}},
        {"matrix": {"tp": [0]}},
        {"matrix": {"tp": []}},
        {"matrix": {"packing": "thd"}},
        {"matrix": {"foo": [1]}},
        {"matrix": {"include": [{"foo": 1}]}},
        {"matrix": {"layout": [{}]}},
        {"cluster": ""},
        {"stacks": {"a": {"pakages": ["six"]}}},
        {"stacks": {"a": []}},
        {"stacks": {"a/b": {"python": "/p"}}},
        {"launch": {"throttle": 0}},
        {"name": "a/b"},
        {"matrix": {"packing": "sft", "args.clip-grad": [[]]}},
        {"matrix": {"packing": "sft", "args.clip-grad": {"a": 1}}},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(wrong: dict[str, Any]) -> None:
    schema = json_schema()
    good = {"name": "t", "matrix": {"packing": "sft"}}
    assert complaints(good, schema, schema) == []
    assert complaints({**good, **wrong}, schema, schema) != []


def unbounded(schema: Any, at: str = "") -> list[str]:
    """Numbers of a schema without an upper limit."""
    if isinstance(schema, list):
        return [name for number, item in enumerate(schema) for name in unbounded(item, f"{at}[{number}]")]
    if not isinstance(schema, dict):
        return []
    free = schema.get("type") in ("number", "integer") and not schema.keys() & {"maximum", "exclusiveMaximum", "enum"}
    return [*([at] if free else []), *(name for key, item in schema.items() for name in unbounded(item, f"{at}.{key}"))]


@pytest.mark.parametrize(
    "schema", [json_schema(), model_of(ClusterProfile).model_json_schema()], ids=["matrix", "cluster"]
)
def test_every_number_of_a_file_has_a_largest_value(schema: dict[str, Any]) -> None:
    assert unbounded(schema) == []
    assert unbounded({"a": {"type": "integer", "minimum": 1}}) == [".a"]
