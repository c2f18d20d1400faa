"""Arguments that several commands share, and the types of their values. Imports nothing heavy: --help needs it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from harness.app.pipeline import announce
from harness.infra import screen
from harness.infra.inputs.files import matrix_path

RUN_PARENT = Path("reports")  # folder of run directories, unless the command or the cluster profile names another
CLUSTER_JOBS = 3  # points that a bisection on a cluster judges at once: each round leaves a quarter of the history
RUN = "path, run id, or 'latest'"
MATRIX = "matrix file (YAML), or a shipped one by name"


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)


def add_run_parent(
    parser: argparse.ArgumentParser,
    *,
    default: Path | str | None = RUN_PARENT,
    what: str = "folder of run directories",
) -> None:
    """`default`: None if the cluster profile decides; argparse.SUPPRESS if the option may also stand elsewhere."""
    shown = f"the profile's run_dir, else {RUN_PARENT}" if default is None else RUN_PARENT
    parser.add_argument("--run-dir", type=Path, default=default, metavar="DIR", help=f"{what} (default: {shown})")


def add_history(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    place = "the history (SQLite), instead of $HARNESS_HISTORY or history.sqlite beside the run directories"
    parser.add_argument("--history", type=Path, metavar="FILE", default=default, help=place)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_view(parser: argparse.ArgumentParser) -> None:
    """Options of commands that judge: how much they show."""
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="show only what did not pass, and the verdict")
    amount.add_argument(
        "-v", "--verbose", action="store_true", help="show every cell as it starts and ends, and every finding"
    )
    text = "colours: if the terminal has them and NO_COLOR is not set, or as given (default: %(default)s)"
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=text)
    parser.add_argument("--durations", type=count, default=0, metavar="N", help="list the N slowest cells")


def set_view(arguments: argparse.Namespace) -> None:
    """Apply the options of `add_view`; the defaults where a command has none."""
    screen.VIEW.quiet = getattr(arguments, "quiet", False)
    screen.VIEW.verbose = getattr(arguments, "verbose", False)
    screen.VIEW.color = getattr(arguments, "color", "auto")
    screen.VIEW.durations = getattr(arguments, "durations", 0)


def add_matrix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("matrix", type=matrix_path, metavar="MATRIX", help=MATRIX)


def add_only(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    parser.add_argument("--only", action="append", default=[], metavar=metavar, help=text)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", metavar="NAME", help="cluster profile by name or path, instead of the one that the matrix names"
    )


def add_no_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-history", action="store_true", help="do not record the run in the history")


def add_notify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--notify",
        action="append",
        type=announce.receiver,
        metavar="CMD_OR_URL",
        help="send the verdict to a command (JSON on stdin) or a webhook (http, https); repeatable",
    )


def _number(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not 1 <= value <= most:
            raise ValueError
        return value

    number.__name__ = f"number from 1 to {most:,}"
    return number


count, days = _number(10**9), _number(10**5)


def layer_number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def factor(text: str) -> float:
    number = float(text)
    if not 1 < number < math.inf:
        raise ValueError
    return number


def hours(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


# argparse prints these, e.g. "invalid factor above 1 value: 'x'".
factor.__name__ = "factor above 1"
layer_number.__name__ = "number from 0"
hours.__name__ = "number of hours"
