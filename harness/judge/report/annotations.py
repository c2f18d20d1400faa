"""GitHub Actions annotations of failing cells: lines on stdout that point to the line of the matrix.

Format: `::error file=...,line=...,title=...::message`, a workflow command as GitHub documents it.
"""

from __future__ import annotations

from harness.core.outcomes import Outcome, Severity
from harness.core.text import clip, visible
from harness.judge.report.model import Report, ReportCell
from harness.judge.report.summaries import place_text

MOST = 10  # errors that GitHub shows per step
_MOST_TEXT = 1500


def annotation_lines(report: Report, file: str) -> list[str]:
    """One line per cell that failed or could not be decided, failures first; a last line counts the rest.

    `file`: path of the matrix in the repository.
    """
    cells = [cell for outcome in (Outcome.FAIL, Outcome.ERROR) for cell in report.cells if cell.outcome is outcome]
    lines = [_line("notice", report.faults_text, file=file)] if report.faults else []
    lines += [_error(cell, file) for cell in cells[:MOST]]
    if len(cells) > MOST:
        lines.append(_line("notice", f"{len(cells) - MOST} more cells failed or are undecided", file=file))
    return lines


def _error(cell: ReportCell, file: str) -> str:
    first = next((finding for finding in cell.findings if finding.severity is Severity.ERROR), None)
    if cell.outcome is Outcome.FAIL and first is not None:
        place = place_text(first.where)
        message = f"{first.lane.value}, {first.check}: {first.message}{f' at {place}' if place else ''}"
    else:
        message = cell.reason or "failed"
    line = {} if cell.line is None else {"line": str(cell.line)}
    return _line(
        "error", f"{message}\nreproduce: {cell.reproduce}", file=file, **line, title=f"{cell.outcome.value} {cell.id}"
    )


def _line(command: str, message: str, **properties: str) -> str:
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{command} {given}::{_data(clip(message, _MOST_TEXT))}"


def _data(text: str) -> str:
    """Escapes a message; the percent sign first, since the other escapes contain it."""
    return visible(text.replace("\r\n", "\n")).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
