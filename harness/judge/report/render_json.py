"""report.json: the report as JSON, and back."""

from __future__ import annotations

from typing import Any

from harness.core.errors import InputError
from harness.core.serialization import dumps, from_jsonable, loads
from harness.judge.report.contradictions import contradiction
from harness.judge.report.model import REPORT_VERSION, Report
from harness.judge.report.stack_versions import check


def render_json(report: Report) -> str:
    return dumps(report) + "\n"


def read_report(text: str) -> Report:
    """The report from the text of a report.json; InputError for another schema version or shape, or if it
    contradicts itself."""
    value = _value(text)
    try:
        report = from_jsonable(Report, value)
        check(report.provenance)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"report.json does not hold a report: {error}") from error
    if problem := contradiction(report):
        raise InputError(f"report.json contradicts itself: {problem}")
    return report


def read_provenance(text: str) -> dict[str, Any]:
    """Only the provenance of a report.json; InputError as in `read_report`."""
    provenance: Any = _value(text).get("provenance", {})
    try:
        check(provenance)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"report.json does not hold a report: {error}") from error
    return dict(provenance)


def _value(text: str) -> dict[str, Any]:
    try:
        value = loads(text)
    except ValueError as error:
        raise InputError(f"report.json is not JSON: {error}") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(value, dict) or version != REPORT_VERSION:
        raise InputError(f"report.json has schema_version {version}; this harness reads {REPORT_VERSION}")
    return value
