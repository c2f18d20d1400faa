"""The message sent by `--notify`: the verdict, the first findings, what changed, and a text for chat systems."""

from __future__ import annotations

from typing import Any

from harness.core.outcomes import Outcome, place_text
from harness.core.run.report import Report, ReportCell
from harness.core.text import chat_text, clip, visible

MESSAGE_VERSION = 1  # schema_version of the message
_MAX_CELLS = 5  # with their findings
_MAX_TEXT = 3000
_MAX_LINE = 500


def announcement(report: Report, *, exit_code: int, directory: str) -> dict[str, Any]:
    """Return the message as JSON values. `text` is what webhooks of Slack and Mattermost show."""
    bad = [cell for outcome in (Outcome.FAIL, Outcome.ERROR) for cell in report.cells if cell.outcome is outcome]
    return {
        "schema_version": MESSAGE_VERSION,
        "text": _text(report, bad, directory),
        "run_id": report.run_id,
        "matrix": report.matrix,
        "verdict": report.verdict,
        "exit_code": exit_code,
        "counts": {outcome.value: count for outcome, count in report.counts.items() if count},
        "first": [_cell(cell) for cell in bad[:_MAX_CELLS]],
        "since": report.since,
        "faults": report.faults,
        "directory": directory,
    }


def not_judged(what: str, message: str, *, exit_code: int) -> dict[str, Any]:
    """Return the message for a run that ended before it was judged. `what`: the matrix or run as the user named it."""
    return {
        "schema_version": MESSAGE_VERSION,
        "text": _escaped([f"*ERROR* {what}: ended with exit code {exit_code} before it was judged", message]),
        "run_id": "",
        "matrix": what,
        "verdict": "error",
        "exit_code": exit_code,
        "counts": {},
        "first": [],
        "since": None,
        "faults": [],
        "directory": "",
    }


def _cell(cell: ReportCell) -> dict[str, Any]:
    value: dict[str, Any] = {"id": cell.id, "outcome": cell.outcome, "reason": cell.reason, "reproduce": cell.reproduce}
    if first := cell.first:
        value |= {"lane": first.lane, "check": first.check, "message": first.message}
        value |= {"place": first.place, "fault_class": first.fault_class}
    return value


def _text(report: Report, bad: list[ReportCell], directory: str) -> str:
    lines = [f"*{report.headline}* {report.matrix}: {report.counts_text or 'no cells'}"]
    lines += [f"- {problem}" for problem in [*report.problems, *filter(None, [report.faults_text])]]
    for cell in bad[:_MAX_CELLS]:
        first = cell.first.message if cell.first else cell.reason
        lines.append(f"- {cell.outcome.value} {cell.id}: {first}")
    if len(bad) > _MAX_CELLS:
        lines.append(f"- and {len(bad) - _MAX_CELLS} more")
    if report.since is not None:
        lines.append(report.since.text)
        lines += [f"- {cell.change} {cell.id}: {cell.text}" for cell in report.since.cells[:_MAX_CELLS]]
    lines.append(f"run {report.run_id} in {directory}")
    return _escaped(lines)


def _escaped(lines: list[str]) -> str:
    """Return the lines as one text, with the markup of chat systems escaped."""
    return clip("\n".join(chat_text(line, _MAX_LINE) for line in lines), _MAX_TEXT)


MOST = 10  # errors that GitHub shows per step
_MAX_ANNOTATION = 1500


# GitHub Actions annotations of failing cells: lines on stdout that point to the line of the matrix.
#
# Format: `::error file=...,line=...,title=...::message`, a workflow command as GitHub documents it.
def annotation_lines(report: Report, file: str) -> list[str]:
    """Return one line per cell that failed or could not be decided, failures first; a last line counts the rest.

    `file`: path of the matrix in the repository.
    """
    cells = [cell for outcome in (Outcome.FAIL, Outcome.ERROR) for cell in report.cells if cell.outcome is outcome]
    lines = [_line("notice", report.faults_text, file=file)] if report.faults else []
    lines += [_error(cell, file) for cell in cells[:MOST]]
    if len(cells) > MOST:
        lines.append(_line("notice", f"{len(cells) - MOST} more cells failed or are undecided", file=file))
    return lines


def _error(cell: ReportCell, file: str) -> str:
    if cell.outcome is Outcome.FAIL and cell.errors:
        first = cell.errors[0]
        place = place_text(first.unsaid)
        message = f"{first.lane.value}, {first.check}: {first.message}{f' at {place}' if place else ''}"
    else:
        message = cell.reason or "failed"
    line = {} if cell.line is None else {"line": str(cell.line)}
    return _line(
        "error", f"{message}\nreproduce: {cell.reproduce}", file=file, **line, title=f"{cell.outcome.value} {cell.id}"
    )


def _line(command: str, message: str, **properties: str) -> str:
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{command} {given}::{_data(clip(message, _MAX_ANNOTATION))}"


def _data(text: str) -> str:
    """Escape a message; the percent sign first, since the other escapes contain it."""
    return visible(text.replace("\r\n", "\n")).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
