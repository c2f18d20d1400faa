from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from harness.core.errors import InputError
from harness.core.outcomes import Finding, Lane, Severity
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report
from harness.core.serialization import dumps, to_jsonable
from harness.core.stack import StackFacts
from harness.reporting.render_json import read_provenance, read_report, render_json
from tests.two_runs import decided


def test_the_fields_of_the_contract_are_there(broken_report: Report) -> None:
    value = json.loads(render_json(broken_report))
    assert value["schema_version"] == 2
    assert set(value) >= {
        "run_id",
        "matrix",
        "verdict",
        "counts",
        "provenance",
        "timing",
        "cells",
        "rejected",
    }
    assert list(value["counts"]) == ["PASS", "FAIL", "XFAIL", "XPASS", "REJECTED", "ERROR", "FLAKY", "NOT_RUN"]
    cell = next(cell for cell in value["cells"] if cell["outcome"] == "FAIL")
    assert set(cell) >= {"id", "axes", "outcome", "lanes", "findings", "timing", "reproduce"}
    assert cell["lanes"] == {"metadata": "fail", "numerics": "pass", "throughput": "skip"}
    assert set(cell["findings"][0]) == {
        "lane",
        "check",
        "severity",
        "fault_class",
        "follows_from",
        "known",
        "message",
        "where",
        "measured",
        "bound",
    }
    assert set(value["rejected"][0]) >= {"id", "axes", "rule", "reason"}


def test_the_round_trip_is_exact(broken_report: Report) -> None:
    assert read_report(render_json(broken_report)) == broken_report


def test_nan_and_infinity_survive(broken_report: Report) -> None:
    finding = Finding(
        lane=Lane.NUMERICS, check="finiteness", message="m", measured=math.nan, bound=math.inf, where={"x": -math.inf}
    )
    finding = replace(finding, severity=Severity.WARNING)
    cell = replace(broken_report.cells[0], role="cell", findings=[finding])
    text = render_json(decided(replace(broken_report, cells=[cell])))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    [back] = read_report(text).cells[0].findings
    assert math.isnan(back.measured) and back.bound == math.inf and back.where == {"x": -math.inf}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "schema_version None"),
        ('{"schema_version": 1}', "schema_version 1; this harness reads 2"),
        ('{"schema_version": 2, "cells": 3}', "does not hold a report"),
    ],
)
def test_anything_but_a_report_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_report(text)


@pytest.mark.parametrize(
    ("provenance", "words"),
    [
        ({"stacks": {"s": {"packages": ["torch==2.15.0"]}}}, r"stacks\[s\]\.packages\[0\]: expected a mapping"),
        ({"imports_of_stacks": {"s": ["torch 2.15.0"]}}, r"stacks\[s\]\[0\]: expected a mapping, found .torch"),
        ({"stacks": []}, "stacks: expected a mapping"),
        ({"cluster": "a"}, "unknown field 'cluster'"),
    ],
)
def test_provenance_of_another_shape_is_refused(broken_report: Report, provenance: dict[str, Any], words: str) -> None:
    text = dumps({**to_jsonable(broken_report), "provenance": provenance})
    for read in (read_report, read_provenance):
        with pytest.raises(InputError, match=words):
            read(text)


def test_stacks_plugins_and_chosen_cells_are_written_only_if_there_are_any() -> None:
    optional = {"stacks": {"s": StackFacts()}, "plugins": {"p": "1"}, "chosen": ["*sft*"]}
    bare, whole = to_jsonable(Provenance()), to_jsonable(Provenance(**optional))
    assert (bare.keys() & optional.keys(), whole.keys() - bare.keys()) == (set(), optional.keys())
    assert bare["hosts"] == []


def test_the_provenance_is_read_without_the_cells(broken_report: Report) -> None:
    assert read_provenance(render_json(broken_report)) == broken_report.provenance
