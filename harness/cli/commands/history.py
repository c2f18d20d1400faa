"""`harness history`: outcomes and metrics of all runs, as listings, files and a page; `harness index`: their page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from harness.campaign.options import RUN_PARENT, add_option, count, days
from harness.cli.arguments import RUN_TEXT, add_run_parent
from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_INPUT, EXIT_PASS, Outcome
from harness.core.serialization import dumps
from harness.core.text import counted
from harness.history.queries import LISTINGS
from harness.infra import screen
from harness.infra.files import is_folder
from harness.infra.screen import relative_path

_ROWS = 40  # of a listing without --limit
_FIRST_YEAR = 1970  # a date is compared as text, so its year needs four digits
_CLIPPED = 60  # characters of a value in a listing
# Columns of a listing on a terminal; exported files have all columns.
_COLUMNS = {
    "runs": "started run_id matrix verdict cells pass fail xfail xpass flaky error rejected expired wall_s",
    "cells": "last cell stack version last_started runs pass fail xfail xpass expired flaky flaky_rate turned error",
    "outcomes": "started cell outcome known version step_p50_s tokens_per_s loss_drift run_id reason",
    "findings": "started cell outcome lane check severity fault_class message",
    "metrics": "started cell outcome version metric value run_id",
}
_ACTIONS = {
    "runs": "a line per run, newest first (the default)",
    "cells": "a line per cell: last outcome, count of each outcome, flaky rate; worst first",
    "outcomes": "a line per cell and run, with times and drift",
    "findings": "a line per finding",
    "metrics": "a line per metric",
    "html": "a page with the trends of each cell",
    "export": "a listing as CSV, JSON or Parquet, with all columns",
    "prune": "remove old runs",
    "import": "add run directories to the history",
}
_INDEX_DAYS = 90  # that history.html looks back


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """The parser of the command; its actions share the filters."""
    from harness.reporting.output_files import FORMATS

    text = "list, draw, export and prune the outcomes and figures of all runs"
    parser = commands.add_parser("history", help=text, description=text)
    _filters(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    made = {name: actions.add_parser(name, help=words, description=words) for name, words in _ACTIONS.items()}
    for name in (*LISTINGS, "export", "html"):
        _filters(made[name], limited=name != "html", as_json=name in LISTINGS)
    for name in ("prune", "import"):
        _place(made[name])
    page, export, prune = made["html"], made["export"], made["prune"]
    page.add_argument(
        "-o", "--output", type=Path, metavar="PAGE", help="output file (default: history.html beside the history)"
    )
    page.add_argument("--days", type=days, default=90, metavar="N", help="days to look back (default: %(default)s)")
    export.add_argument(
        "listing", nargs="?", choices=LISTINGS, default="outcomes", help="listing to export (default: %(default)s)"
    )
    export.add_argument("--format", choices=FORMATS, default="csv", help="file format (default: %(default)s)")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="output file (default: standard output)")
    prune.add_argument("--older-than", metavar="AGE", help="remove runs older than this: a date, or an age such as 90d")
    prune.add_argument("--keep-last", type=count, default=0, metavar="N", help="keep the last N runs of each matrix")
    prune.add_argument("--dry-run", action="store_true", help="show what would be removed, remove nothing")
    made["import"].add_argument("runs", nargs="+", metavar="RUN", help=RUN_TEXT)


def _place(parser: argparse.ArgumentParser) -> None:
    """Options that locate the history. No defaults: an action must not overwrite options given before its name."""
    add_option(parser, "history", default=argparse.SUPPRESS)
    add_run_parent(parser, default=argparse.SUPPRESS)


def _filters(parser: argparse.ArgumentParser, *, limited: bool = True, as_json: bool = True) -> None:
    _place(parser)
    for flag, metavar, words in (
        ("--matrix", "NAME", "only matrices with this name or shell-style pattern"),
        ("--cell", "CELL", "only cells with this name, id or shell-style pattern"),
        ("--stack", "NAME", "only stacks with this name, version or pattern: 'megatron-core 0.19*'"),
        ("--since", "DATE", "only runs started at that time or later: 2026-08-01, or 30d for the last 30 days"),
        ("--until", "DATE", "only runs started before that time"),
    ):
        parser.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=words)
    names = [outcome.value for outcome in Outcome]
    parser.add_argument("--outcome", type=str.upper, choices=names, default=argparse.SUPPRESS, help="only this outcome")
    if limited:
        words = f"maximum number of rows (default: {_ROWS}; exports have no limit)"
        parser.add_argument("--limit", type=count, metavar="N", default=argparse.SUPPRESS, help=words)
    if as_json:
        parser.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON with all columns"
        )


def run(arguments: argparse.Namespace) -> int:
    """Run one action; returns its exit code."""
    from harness.campaign.finalize import history_file

    given = vars(arguments)
    parent: Path = given.get("run_dir", RUN_PARENT)
    file = history_file(given.get("history"), parent)
    action = arguments.action or "runs"
    if action == "import":
        return _import(arguments.runs, parent, file)
    if action == "prune":
        return _prune(arguments, file)
    if action == "html":
        return _page(arguments, file)
    if action == "export":
        return _export(arguments, file)
    return _list(action, given, file)


def _row_filters(given: Mapping[str, Any], limit: int | None) -> Any:
    from harness.history.queries import Filters

    moments = {name: moment(given[name], f"--{name}") for name in ("since", "until") if name in given}
    words = {name: given[name] for name in ("matrix", "cell", "stack", "outcome") if name in given}
    return Filters(**words, **moments, limit=given.get("limit", limit))


def moment(text: str, flag: str, *, now: datetime | None = None) -> str:
    """Return a date, a time or an age ("90d", "12h", "4w") as an ISO time in UTC; InputError for anything else."""
    ago = re.fullmatch(r"(\d{1,5})([hdw])", text, re.ASCII)
    try:
        if ago:
            unit = {"h": "hours", "d": "days", "w": "weeks"}[ago[2]]
            when = (now or datetime.now(timezone.utc)) - timedelta(**{unit: int(ago[1])})
        else:
            when = datetime.fromisoformat(text.replace("Z", "+00:00"))
            when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
        when = when.astimezone(timezone.utc)
        if when.year < _FIRST_YEAR:
            raise ValueError
    except (ValueError, OverflowError) as error:
        allowed = (
            f"a date from {_FIRST_YEAR} to 9999 (2026-08-01), a time (2026-08-01T06:00), or how long ago (12h, 90d, 4w)"
        )
        raise InputError(Problem(key=flag, message="is not a date", found=repr(text), allowed=allowed)) from error
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def _list(what: str, given: Mapping[str, Any], file: Path) -> int:
    from harness.history.database import opened
    from harness.history.queries import listing

    with opened(file, write=False) as history:
        rows = list(history.rows(listing(what, _row_filters(given, _ROWS))))
    if given.get("json"):
        screen.json_data(dumps(rows, indent=2) + "\n")
    else:
        nothing = "nothing in the history matches"
        screen.out(table_text(rows, _COLUMNS[what].split(), screen.width()) if rows else nothing)
    return EXIT_PASS


def table_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int | None) -> str:
    """Return rows under their headings, numbers right-aligned. Columns beyond `width` are left out, and named below."""
    lines = [[column.replace("_", " ") for column in columns]]
    lines += [[_text(row[column]) for column in columns] for row in rows]
    right = [all(isinstance(row[column], (int, float, type(None))) for row in rows) for column in columns]
    sizes = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    count = len(columns)
    while width is not None and count > 1 and sum(sizes[:count]) + 2 * (count - 1) > width:
        count -= 1
    padded = (
        "  ".join(
            f"{text:>{size}}" if on_right else f"{text:<{size}}"
            for text, size, on_right in zip(line[:count], sizes, right)
        )
        for line in lines
    )
    shown = [line.rstrip()[:width] for line in padded]
    if left := columns[count:]:
        shown.append(screen.wrapped(f"no room for: {', '.join(left)}"))
    return "\n".join(shown)


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join("".join(char if char.isprintable() else " " for char in str(value)).split())
    return text if len(text) <= _CLIPPED else f"{text[: _CLIPPED - 3]}..."


def _export(arguments: argparse.Namespace, file: Path) -> int:
    from harness.history.database import opened
    from harness.history.queries import listing
    from harness.reporting.output_files import write_table

    with opened(file, write=False) as history:
        rows = history.rows(listing(arguments.listing, _row_filters(vars(arguments), None)))
        written = write_table(rows, arguments.format, arguments.output)
    if arguments.output is not None:
        screen.out(f"{arguments.output}: {counted(written, 'row')}")
    return EXIT_PASS


def _prune(arguments: argparse.Namespace, file: Path) -> int:
    from harness.history.database import opened

    if arguments.older_than is None and not arguments.keep_last:
        hint = "give --older-than 90d, --keep-last 100, or both"
        raise InputError(Problem(key="prune", message="no runs selected", hint=hint))
    before = moment(arguments.older_than, "--older-than") if arguments.older_than else None
    if not file.exists():
        raise InputError(Problem(message="there is no history", file=str(file)))
    with opened(file, write=True) as history:
        gone = history.prune(before, arguments.keep_last, dry_run=arguments.dry_run)
    done = "would be removed" if arguments.dry_run else "removed"
    screen.out("\n".join([*gone, f"{counted(len(gone), 'run')} {done}"]))
    return EXIT_PASS


def _import(names: Sequence[str], parent: Path, file: Path) -> int:
    """Record every readable run; unreadable ones are reported, and the exit code is then 2."""
    from harness.campaign.finalize import record
    from harness.campaign.selection import find_run
    from harness.cli.commands.compare import MAX_BYTES
    from harness.core.run.run_dir import refuse_links
    from harness.infra.files import read_text
    from harness.reporting.render_json import read_report

    bad = 0
    for name in names:
        try:
            directory = find_run(name, parent)
            path = directory.report("report.json")
            refuse_links(path)
            if not path.exists():
                hint = f"judge it first: harness report {name}"
                raise InputError(Problem(message="the run has no report.json", file=str(directory.root), hint=hint))
            report = read_report(read_text(path, MAX_BYTES))
            if report.faults:
                raise InputError(Problem(message="the history holds no runs with injected faults", file=str(path)))
        except InputError as error:
            screen.err(f"harness: {error}")
            bad += 1
            continue
        bad += not record(directory, report, file)
    screen.out(f"{file}: {len(names) - bad} of {len(names)} runs recorded")
    return EXIT_INPUT if bad else EXIT_PASS


def _page(arguments: argparse.Namespace, file: Path) -> int:
    from harness.history.database import opened
    from harness.history.page import render_history
    from harness.infra.screen import relative_path
    from harness.reporting.output_files import written

    page = arguments.output or file.with_name("history.html")
    now = moment("0h", "")
    wanted = _row_filters(vars(arguments), None)
    with opened(file, write=False) as history:
        text = render_history(history, wanted, days=arguments.days, now=now, folder=page.parent)
    with written(page) as stream:
        stream.write(text.encode())
    screen.out(relative_path(page))
    return EXIT_PASS


def add_index_parser(commands: argparse._SubParsersAction[Any]) -> None:
    text = "write a page over the runs of a folder, for a web server or CI artefacts"
    parser = commands.add_parser("index", help=text, description=text)
    words = "folder of runs (default: %(default)s)"
    parser.add_argument("folder", nargs="?", type=Path, default=RUN_PARENT, metavar="DIR", help=words)
    add_option(parser, "history")


def write_index(arguments: argparse.Namespace) -> int:
    """Write index.html of a reports folder and, if there is a history, history.html; both link each other."""
    from harness.campaign.finalize import history_file
    from harness.core.run.run_dir import write_atomic
    from harness.history.database import is_there
    from harness.history.page import render_index
    from harness.runs.listing import indexed_runs

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
        write_atomic(pages[1], _index_history(file, folder))
    screen.out("\n".join(str(relative_path(page)) for page in pages))
    return EXIT_PASS


def _index_history(file: Path, folder: Path) -> str:
    from harness.history.database import opened
    from harness.history.page import render_history
    from harness.history.queries import Filters

    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    with opened(file, write=False) as history:
        return render_history(history, Filters(), days=_INDEX_DAYS, now=now, folder=folder)
