"""`harness index`: a page over the runs of a folder."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness.app.arguments import RUN_PARENT, add_history
from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_PASS
from harness.infra import screen
from harness.infra.inputs.files import is_folder
from harness.infra.screen import relative_path

_DAYS = 90  # that history.html looks back


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    text = "write a page over the runs of a folder, for a web server or CI artefacts"
    parser = commands.add_parser("index", help=text, description=text)
    words = "folder of runs (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default=RUN_PARENT, metavar="DIR", help=words)
    add_history(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write index.html of a reports folder and, if there is a history, history.html; both link each other."""
    from harness.app.pipeline.finalize import history_file
    from harness.core.run.run_dir import write_atomic
    from harness.infra.history.database import is_there
    from harness.infra.html.history import render_index
    from harness.infra.runs.listing import indexed_runs

    folder: Path = arguments.folder
    if not is_folder(folder):
        hint = "harness run writes to reports/, or to --run-dir"
        raise InputError(Problem(message="no such folder of runs", file=str(folder), hint=hint))
    file = history_file(arguments.history, folder)
    has_history = is_there(file)
    pages = [folder / "index.html"]
    write_atomic(pages[0], render_index(indexed_runs(folder), history=has_history))
    if has_history:
        pages.append(folder / "history.html")
        write_atomic(pages[1], _history(file, folder))
    screen.out("\n".join(str(relative_path(page)) for page in pages))
    return EXIT_PASS


def _history(file: Path, folder: Path) -> str:
    from harness.infra.history.database import opened
    from harness.infra.history.queries import Filters
    from harness.infra.html.history import render_history

    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    with opened(file, write=False) as history:
        return render_history(history, Filters(), days=_DAYS, now=now, folder=folder)
