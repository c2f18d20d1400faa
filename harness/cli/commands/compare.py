"""`harness compare`: two runs, or a run and a saved report, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.campaign.options import factor
from harness.cli.arguments import add_run_parent
from harness.core.errors import InputError, Problem
from harness.core.tolerances import SLOWER_RUN, Bound
from harness.infra import screen
from harness.infra.files import MIB, is_file, read_text

if TYPE_CHECKING:
    from harness.core.run.report import Report

MAX_BYTES = 256 * MIB  # of a report.json


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "compare", help="show what changed from one run to another; exit code 1 for a regression"
    )
    text = "path, run id, 'latest', or a saved report.json"
    parser.add_argument("run", metavar="RUN_A", help=f"the earlier run, or with --baseline the only one: {text}")
    parser.add_argument(
        "other", metavar="RUN_B", nargs="?", help="the later run, named the same way; not with --baseline"
    )
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="saved report.json to compare RUN_A with")
    parser.add_argument(
        "--slower-than",
        type=factor,
        metavar="FACTOR",
        help=f"ratio of times that counts as a regression (default: {SLOWER_RUN.value})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; writes no file")
    add_run_parent(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare two runs, or a run with a baseline; returns 0, 1 for a regression, 3 when no cell was judged in both.

    Without --json, compare.md and compare.html are written beside the later run's report, which links the latter.
    """
    from harness.campaign.comparison import compared, write_comparison
    from harness.reporting.compare.render import exit_code, render_comparison_json
    from harness.reporting.console import print_lines

    if (arguments.other is None) == (arguments.baseline is None):
        allowed = "RUN_A RUN_B, or one RUN with --baseline FILE"
        raise InputError(Problem(message="two reports are needed", allowed=allowed))
    later = arguments.other or arguments.run
    before, earlier = read(str(arguments.baseline or arguments.run), arguments.run_dir)
    after, folder = read(later, arguments.run_dir)
    ratio = arguments.slower_than
    slower = Bound(value=ratio, unit="factor", origin="--slower-than") if ratio else SLOWER_RUN
    comparison = compared(before, after, folder, slower)
    if arguments.json:
        screen.json_data(render_comparison_json(comparison))
    else:
        print_lines(write_comparison(comparison, after, folder, earlier))
    return exit_code(comparison)


def read(name: str, run_parent: Path) -> tuple[Report, Path]:
    """Return the report named by a run directory, a run id, 'latest' or a saved report.json; and its folder."""
    from harness.campaign.selection import find_run
    from harness.core.run.run_dir import refuse_links
    from harness.infra.screen import relative_path
    from harness.reporting.render_json import read_report

    path = Path(name)
    if not is_file(path) or is_file(path.parent / "plan.json"):
        run = find_run(name, run_parent)
        path = run.report(path.name if is_file(path) else "report.json")
        refuse_links(path)
        if not path.exists():
            raise InputError(
                Problem(
                    message="the run has no report.json",
                    file=str(run.root),
                    hint=f"judge it first: harness report {relative_path(run.root)}",
                )
            )
    text = read_text(path, MAX_BYTES)
    try:
        return read_report(text), path.resolve().parent
    except InputError as error:
        raise InputError(Problem(message=str(error), file=str(path), hint="harness report RUN rewrites it")) from error
