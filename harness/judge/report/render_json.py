"""report.json: the report as JSON, and back."""

from __future__ import annotations

from harness.core.errors import InputError
from harness.core.run.records import SCHEMA_VERSION
from harness.core.serialization import dumps, from_jsonable, loads
from harness.judge.report.model import Report


def render_json(report: Report) -> str:
    return dumps(report) + "\n"


def read_report(text: str) -> Report:
    """The report from the text of a report.json; InputError for another schema version or shape."""
    try:
        value = loads(text)
    except ValueError as error:
        raise InputError(f"report.json is not JSON: {error}") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(f"report.json has schema_version {version}; this harness reads {SCHEMA_VERSION}")
    try:
        return from_jsonable(Report, value)
    except (TypeError, ValueError) as error:
        raise InputError(f"report.json does not hold a report: {error}") from error
