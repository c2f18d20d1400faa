"""The paths of the list. That exactly these changes go undetected is tested by tests/judge/test_tampering.py."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from harness.core.run.cell_result import CellResult
from harness.core.run.records import OracleRecord, RankRecord
from harness.judge.required.not_evidence import NOT_EVIDENCE

FILES = {"record": RankRecord, "lone": RankRecord, "result": CellResult, "oracle": OracleRecord}


def below(kind: Any, name: str) -> Any:
    """The type of the part `name` of a value; KeyError if there is none."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    if dataclasses.is_dataclass(kind):
        return get_type_hints(kind)[name]
    if get_origin(kind) not in (list, dict) or (name != "*" and get_args(kind) != (str, str)):
        raise KeyError(name)
    return get_args(kind)[-1]


def kinds(path: str) -> Iterator[Any]:
    """The types along a path, from the file to the field."""
    file, *names = path.split(".")
    kind: Any = FILES[file]
    yield kind
    for name in names:
        kind = below(kind, name)
        yield kind


@pytest.mark.parametrize("path", NOT_EVIDENCE)
def test_every_path_leads_to_a_field_of_a_file(path: str) -> None:
    assert len(list(kinds(path))) == path.count(".") + 1


@pytest.mark.parametrize("path", ["record.nothing", "record.steps.0.time_s", "record.rank.*", "result.ranks.rank"])
def test_other_paths_lead_nowhere(path: str) -> None:
    with pytest.raises(KeyError):
        list(kinds(path))


@pytest.mark.parametrize("path", NOT_EVIDENCE)
def test_every_field_has_a_reason(path: str) -> None:
    reason = NOT_EVIDENCE[path]
    assert reason.strip() == reason and len(reason.split()) > 3
