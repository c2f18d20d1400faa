"""Writes the report files of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread

from harness.app.error_boundary import uncaught
from harness.core.errors import HarnessError, InfrastructureError
from harness.core.run.run_dir import RunDir, refuse_links, write_atomic
from harness.core.serialization import dumps
from harness.infra.html.report import PARTS_FOLDER, render_pages
from harness.judge.report.model import Report
from harness.judge.report.render_json import render_json
from harness.judge.report.render_junit import render_junit
from harness.judge.report.render_markdown import render_markdown


def import_ahead() -> None:
    """Begin to import what the curves of report.html need, half a second in which the launcher of a local run waits."""

    def curves() -> None:
        with suppress(Exception):  # the report imports it again, and says what is wrong
            import_module("harness.infra.html.curves")

    Thread(target=curves).start()  # not a daemon: those end within an extension module at exit, which may abort


def write_reports(run: RunDir, report: Report) -> list[Path]:
    """Write report.json, junit.xml, report.md and report.html, and noise.json if it has content.

    Returns the paths of the first four. InfrastructureError, after all were tried, if some cannot be written.
    """
    renderers: dict[str, Callable[[Report], str]] = {
        "report.json": render_json,
        "junit.xml": render_junit,
        "report.md": render_markdown,
        "report.html": lambda one: _pages(run, one),
    }
    if report.noise:
        renderers["noise.json"] = lambda one: dumps(one.noise, indent=1) + "\n"
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
    """The text of report.html; further pages of a large report are written, in place of those of an earlier report."""
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
