"""Writes the report files of a run, and output for CI systems: annotations and the job summary of GitHub Actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TextIO

from harness.core.errors import HarnessError, InfrastructureError
from harness.core.run.report import Report
from harness.core.run.run_dir import RunDir, refuse_links, write_atomic
from harness.core.serialization import dumps
from harness.infra import screen
from harness.infra.files import matrix_path
from harness.infra.process import uncaught
from harness.reporting.announcement import annotation_lines
from harness.reporting.html.report import PARTS_FOLDER, render_pages
from harness.reporting.render_json import render_json
from harness.reporting.render_junit import render_junit
from harness.reporting.render_markdown import render_markdown

MAX_BYTES = 1024 * 1024  # of the CI system's summary of one step
_MIN_BYTES = 512  # a shorter summary is of no use


def import_ahead() -> None:
    """Begin to import what the curves of report.html need, half a second in which the launcher of a local run waits."""

    def curves() -> None:
        with suppress(Exception):  # the report imports it again, and says what is wrong
            import_module("harness.reporting.html.curves")

    Thread(target=curves).start()  # not a daemon: those end within an extension module at exit, which may abort


def write_reports(run: RunDir, report: Report) -> list[Path]:
    """Write report.json, junit.xml, report.md and report.html, and noise.json if it has content.

    Returns the paths of the first four. InfrastructureError, after all were tried, if some cannot be written.
    """
    renderers: dict[str, Callable[[Report], str]] = {
        "report.json": render_json,
        "junit.xml": render_junit,
        "report.md": render_markdown,
        "report.html": lambda judged: _pages(run, judged),
    }
    if report.noise:
        renderers["noise.json"] = lambda judged: dumps(judged.noise, indent=1) + "\n"
    problems = []
    for name, render in renderers.items():
        try:
            write_atomic(run.report(name), render(report))
        except Exception as error:
            problems.append(str(error if isinstance(error, HarnessError) else uncaught(error, run.root)))
    if problems:
        raise InfrastructureError("; ".join(dict.fromkeys(problems)))
    return [run.report(name) for name in renderers if name != "noise.json"]


def _pages(run: RunDir, report: Report) -> str:
    """Return the text of report.html.

    Further pages of a large report are written, in place of those of an earlier report.
    """
    pages = render_pages(report, run.root)
    _, first = next(pages)
    written = set()
    for name, text in pages:
        write_atomic(run.root / name, text)
        written.add(run.root / name)
    for old in set((run.root / PARTS_FOLDER).glob("[0-9]*.html")) - written:
        refuse_links(old)
        old.unlink()
    return first


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
            _append_summary(Path(summary), report)
        except OSError as error:
            screen.err(f"harness: cannot write the job summary: {error}")


def _in_workspace(file: str, workspace: str) -> str:
    """Return the path relative to the repository."""
    path = matrix_path(file).resolve()
    return str(path.relative_to(workspace)) if workspace and path.is_relative_to(workspace) else file


def _append_summary(path: Path, report: Report) -> None:
    """Append within the limit: GitHub drops all of a summary that is too large, also what earlier commands wrote."""
    room = MAX_BYTES - (path.stat().st_size if path.exists() else 0) - _MIN_BYTES
    if room < _MIN_BYTES:
        raise OSError(f"{path} has reached the limit of {MAX_BYTES} bytes")
    with path.open("a", encoding="utf-8") as stream:
        stream.write(render_markdown(report, most_bytes=room) + "\n")
