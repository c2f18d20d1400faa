"""Output for CI systems besides the report files: annotations and the job summary of GitHub Actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from harness.infra import screen
from harness.infra.inputs.shipped import matrix_path
from harness.judge.report.annotations import annotation_lines
from harness.judge.report.model import Report
from harness.judge.report.render_markdown import render_markdown

MOST_BYTES = 1024 * 1024  # of the summary of one step
_LEAST_BYTES = 512  # a shorter summary is of no use


def write_ci_output(report: Report, environment: Mapping[str, str], stream: TextIO | None = None) -> None:
    """Write annotations to stdout under GITHUB_ACTIONS=true, and append the summary to GITHUB_STEP_SUMMARY.

    If the summary cannot be written, a message goes to stderr.
    """
    if environment.get("GITHUB_ACTIONS") == "true":
        file = _in_workspace(report.matrix_file, environment.get("GITHUB_WORKSPACE", ""))
        for line in annotation_lines(report, file):
            screen.data(line, stream)
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        try:
            _append(Path(summary), report)
        except OSError as error:
            screen.err(f"harness: cannot write the job summary: {error}")


def _in_workspace(file: str, workspace: str) -> str:
    """The path relative to the repository."""
    path = matrix_path(file).resolve()
    return str(path.relative_to(workspace)) if workspace and path.is_relative_to(workspace) else file


def _append(path: Path, report: Report) -> None:
    """Append within the limit: GitHub drops all of a summary that is too large, also what earlier commands wrote."""
    room = MOST_BYTES - (path.stat().st_size if path.exists() else 0) - _LEAST_BYTES
    if room < _LEAST_BYTES:
        raise OSError(f"{path} has reached the limit of {MOST_BYTES} bytes")
    with path.open("a", encoding="utf-8") as stream:
        stream.write(render_markdown(report, most_bytes=room) + "\n")
